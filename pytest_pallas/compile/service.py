"""Compile programs in supervised workers, and remember on disk what was compiled.

A session makes one ``Service``. It sends a ``CompileRequest`` to a worker, whose compiler (the
modules ``libtpu`` and ``cuda``) answers with a ``CompileReport``. Reports of earlier runs come from
a ``Cache``. ``divert`` and ``overhear_log`` keep what compilers print meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pallas_sim.chips import TARGETS, added_facts
from pallas_sim.errors import PallasError
from pallas_sim.findings import Text
from pytest_pallas.compile.machine_code import Cost, total
from pytest_pallas.decoding import (
    Count,
    DataError,
    Seconds,
    decode,
    json_of,
    jsonable,
    parse,
    replacing,
)
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

#: How a compilation ended.
Status = Literal["compiled", "refused", "timed out", "crashed", "out of memory"]


@dataclass(frozen=True, kw_only=True)
class CompileReport(Cost):
    """How a program was compiled for a chip.

    It has the fields of ``Cost``, for all kernels of the program together: ``vmem_bytes`` is that
    of the kernel that needs most, ``bundles`` the sum, and so on.

    Attributes:
      target: the chip, such as ``"v6e"``.
      status: how it ended.
      message: why it did not compile, in a few lines.
      text: output of the compiler, in full.
      seconds: wall time in the compiler; of the first time, if the result was cached.
      compiler: the compiler's name and version.
      cached: whether an earlier run had compiled the same.
      signature: dtypes, shapes and options that it was compiled for.
      typical: whether its spec names this call as typical.
      kernel_calls: Pallas kernels in the executable; None where nothing was compiled.
      kernels: what each kernel costs. Equal kernels are compiled once.
      costs_skipped: whether the compiler was not asked for costs (``--pallas-cost=skip``).
    """

    target: str
    status: Status
    message: Text = ""
    text: Text = ""
    seconds: Seconds = 0.0
    compiler: str = ""
    cached: bool = False
    signature: Text = ""
    typical: bool = False
    kernel_calls: Count | None = None
    kernels: tuple[Cost, ...] = ()
    costs_skipped: bool = False


def compiled_report(
    target: str, kernels: tuple[Cost, ...], *, code_bytes: int | None = None, **facts: Any
) -> CompileReport:
    """Make the report of a program that compiled.

    Args:
      target: the chip.
      kernels: what each kernel's machine code costs, in the order of the program.
      code_bytes: size of the whole executable's code, for kernels that have none of their own.
      facts: other fields of the report.
    """
    costs = total(kernels)
    if costs["code_bytes"] is None:
        costs["code_bytes"] = code_bytes
    return CompileReport(target=target, status="compiled", kernels=kernels, **costs, **facts)


def to_json(report: CompileReport) -> dict[str, Any]:
    """Return a report as plain JSON values, without the fields that do not apply."""
    return {
        name: value
        for name, value in jsonable(report).items()
        if value not in (None, "", [], {}) and value is not False  # 0 is a number, equal to False
    }


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """A program to compile for a chip.

    Attributes:
      target: name of the chip, such as ``"v6e"`` or ``"h100"``.
      module: a program exported and serialized with ``jax.export``, lowered for that chip.
      devices: how many devices the program runs on.
      dump: folder to keep the compiler's intermediate and final code in, or "".
      chip: what the worker must ``learn`` of the chip, which the service adds; nothing of one that
        is built in.
    """

    target: str
    module: bytes
    devices: int = 1
    dump: str = ""
    chip: Mapping[str, Any] = field(default_factory=dict[str, Any])


#: Begins a message of a C++ log: its severity, the date, the time, the thread and the place.
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\] ")


@dataclass
class CapturedOutput:
    """What a compiler wrote; complete when the context has ended.

    Attributes:
      text: all of it.
    """

    text: str = ""

    def remarks(self) -> str:
        """Return the text without those messages of a C++ log that are only information."""
        lines: list[str] = []
        information = False
        for line in self.text.splitlines(keepends=True):
            if _LOGGED.match(line):
                information = line.startswith("I")
            elif line[:1].strip() and not line.startswith("ptxas info"):
                information = False  # indented lines belong to the message before them
            if not information:
                lines.append(line)
        return "".join(lines)


@contextmanager
def divert(descriptor: int) -> Generator[CapturedOutput]:
    """Capture what is written to a file descriptor, and show nothing of it.

    Args:
      descriptor: 1 or 2. What is in Python's buffers is not touched.
    """
    captured = CapturedOutput()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)
        try:
            yield captured
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)
            file.seek(0)
            captured.text = file.read().decode(errors="replace")


@contextmanager
def overhear_log() -> Generator[CapturedOutput]:
    """Capture what is written to stderr, and remove it from there.

    A compiler that ends the process writes the reason to stderr before. The supervisor of workers
    makes stderr a file that is appended to: such a file is read in place and not diverted, so that
    the reason survives.
    """
    if not _appends(2):
        with divert(2) as captured:
            yield captured
        return
    captured = CapturedOutput()
    start = os.fstat(2).st_size
    try:
        yield captured
    finally:
        if os.fstat(2).st_size < start:  # its reader has emptied it in the meantime
            start = 0
        with open("/proc/self/fd/2", "rb") as file:
            file.seek(start)
            captured.text = file.read().decode(errors="replace")
        os.ftruncate(2, start)


def _appends(descriptor: int) -> bool:
    """Return whether a descriptor is a regular file to whose end every write goes."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not os.path.exists("/proc/self/fd"):
        return False
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)


#: Version of the files. It is part of their names' hash: another version is another file.
FORMAT = 1


@dataclass
class Cache:
    """Results in a folder. A damaged or foreign file counts as none, and is rewritten.

    Attributes:
      folder: of the files; made when the first one is written.
    """

    folder: Path

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was put under ``key``, or None."""
        try:
            plain = decode(dict[str, Any], parse(self._path(key).read_bytes()))
        except (OSError, DataError):
            return None
        return plain if plain.pop("key", None) == key else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value of plain JSON; do nothing where the folder cannot be written."""
        with contextlib.suppress(OSError):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps({"key": key, **value}).encode())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a key for these parts in this order."""
    hashed = hashlib.blake2b(str(FORMAT).encode(), digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8))
        hashed.update(data)
    return hashed.hexdigest()


#: A file system in memory, on Linux.
_SHARED_MEMORY = "/dev/shm"


class Service:
    """Workers and a cache, for one test session."""

    def __init__(
        self,
        *,
        workers: int,
        memory_bytes: int,
        cache: Path | None,
        everything: bool = False,
        costs: bool = True,
    ) -> None:
        """Make a service, which starts workers when they are needed.

        Args:
          workers: how many programs are compiled at once.
          memory_bytes: resident memory above which a worker is killed.
          cache: folder of results of earlier runs; None to keep nothing.
          everything: whether compilers write all they can (for ``--pallas-dump``).
          costs: whether reports have the costs of TPU kernels.
        """
        self.workers = workers
        self.memory_bytes = memory_bytes
        self.everything = everything
        self.costs = costs
        self._cache = None if cache is None else Cache(cache)
        self._running: dict[str, Future[CompileReport]] = {}
        self._close = contextlib.ExitStack()

    def submit(self, request: CompileRequest, *, timeout: float) -> Future[CompileReport]:
        """Compile a program for its chip, or look up the report of an earlier run.

        The report's ``message`` is empty: who knows the kernel makes it of ``text``.

        Args:
          request: what to compile.
          timeout: seconds after which the worker is killed.
        """
        compiler = compiler_of(TARGETS[request.target].platform)
        request = dataclasses.replace(request, chip=added_facts(request.target))
        key = self._key(request, compiler)
        running = self._running.get(key)
        if running is not None and not request.dump:
            return running
        cached = None if self._cache is None or request.dump else self._cache.get(key)
        future: Future[CompileReport] = Future()
        if cached is not None:
            try:
                future.set_result(dataclasses.replace(decode(CompileReport, cached), cached=True))
            except DataError:  # another version wrote it
                cached = None
        if cached is None:
            setup = self._setup(request.target, compiler)
            job = self._pool.submit(setup, json_of(request), timeout=timeout)
            job.add_done_callback(self._finish(future, key, request.target, compiler))
        self._running[key] = future
        return future

    def close(self) -> None:
        """End the workers and remove what they wrote."""
        self._close.close()

    @cached_property
    def _pool(self) -> WorkerPool:
        return self._close.enter_context(WorkerPool(self.workers))

    @cached_property
    def _scratch(self) -> Path:
        # Compilers write much that is read once. In memory that takes half the time.
        shared = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="pytest-pallas-", dir=shared))
        self._close.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _setup(self, target: str, compiler: ModuleType) -> WorkerSetup:
        environment: Mapping[str, str] = compiler.environment(
            self._scratch, target=target, everything=self.everything, costs=self.costs
        )
        return WorkerSetup(
            name=compiler.__name__.rpartition(".")[2],
            entry=compiler.ENTRY,
            environment=tuple(sorted(environment.items())),
            memory_bytes=self.memory_bytes,
        )

    def _key(self, request: CompileRequest, compiler: ModuleType) -> str:
        parts = (request.module, request.target, str(request.devices))
        if request.chip:  # its facts may change
            parts = (*parts, str(request.chip))
        if not self.costs:  # a run with costs must not get this report
            parts = (*parts, "without costs")
        return digest((*parts, *_versions(compiler), compiler.flags()))

    def _finish(
        self, future: Future[CompileReport], key: str, target: str, compiler: ModuleType
    ) -> Callable[[Future[JobResult]], None]:
        def finish(job: Future[JobResult]) -> None:
            try:
                report = _report(job.result(), target=target, compiler=_versions(compiler)[0])
            except CancelledError:
                future.set_exception(PallasError("the session ended before this was compiled"))
                return
            except Exception as error:  # otherwise a wait for the future never ends
                problem = f"the worker's answer cannot be read: {type(error).__name__}: {error}"
                future.set_exception(PallasError(problem))
                return
            # A crash or a timeout may not happen again the next time.
            if self._cache is not None and report.status in ("compiled", "refused"):
                self._cache.put(key, to_json(report))
            future.set_result(report)

        return finish


@functools.cache
def _versions(compiler: ModuleType) -> tuple[str, str]:
    """Return the versions of a compiler and of jaxlib, which lowers for it; reads files."""
    return compiler.version(), metadata.version("jaxlib")


def _report(result: JobResult, *, target: str, compiler: str) -> CompileReport:
    """Make the report of a worker's result."""
    if result.status == "done":
        report = decode(CompileReport, parse(result.value))
    else:
        status = "crashed" if result.status == "raised" else result.status
        report = CompileReport(target=target, status=status, text=result.message)
    text = "" if report.status == "compiled" else f"{report.text}\n{result.output}".strip()
    return dataclasses.replace(
        report, target=target, text=text, compiler=compiler, seconds=result.seconds
    )


def compiler_of(platform: str) -> ModuleType:
    """Return the module of a platform's compiler."""
    name = {"tpu": "libtpu", "gpu": "cuda"}[platform]
    return importlib.import_module(f"pytest_pallas.compile.{name}")
