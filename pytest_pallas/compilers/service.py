"""Compile programs in supervised workers, and remember on disk what was compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from pallas_sim.chips import added_facts
from pallas_sim.errors import PallasError
from pytest_pallas.compilers import report as reports
from pytest_pallas.compilers.messages import CompileReply, CompileRequest
from pytest_pallas.compilers.report import CompileReport
from pytest_pallas.decoding import DataError, parse
from pytest_pallas.workers import JobResult, WorkerPool, WorkerSetup

#: Version of the files. It is part of their names' hash: another version is another file.
FORMAT = 1


class Cache:
    """A folder of results. A damaged or foreign file is as good as none, and is rewritten."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which is made when something is written."""
        self.folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under ``key``, or None."""
        try:
            plain: Any = parse(self._path(key).read_bytes())
        except (OSError, DataError):
            return None
        if not isinstance(plain, dict) or plain.pop("key", None) != key:  # pyright: ignore[reportUnknownMemberType]
            return None
        return plain  # pyright: ignore[reportUnknownVariableType]

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value of plain JSON. Without effect where the folder cannot be written."""
        with contextlib.suppress(OSError):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            # In one step: other processes read while this one writes.
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": key, **value}, file)
            Path(temporary).replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def digest(parts: Iterable[str | bytes]) -> str:
    """A key for what the parts say, in this order."""
    hashed = hashlib.blake2b(str(FORMAT).encode(), digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8))
        hashed.update(data)
    return hashed.hexdigest()


#: A file system in memory, on Linux.
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """A program to compile for a chip.

    Attributes:
      platform: ``"tpu"`` or ``"gpu"``.
      target: name of the chip.
      module: the program, serialized by ``jax.export``.
      devices: how many devices it runs on.
      dump: folder to keep the compiler's output in, or None.
    """

    platform: str
    target: str
    module: bytes
    devices: int = 1
    dump: Path | None = None


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
        """Nothing is started before it is needed.

        Args:
          workers: how many programs are compiled at once.
          memory_bytes: resident memory above which a worker is killed.
          cache: folder of results of earlier runs; None to keep nothing.
          everything: whether compilers shall write all they can (for ``--pallas-dump``).
          costs: whether reports shall have the costs of TPU kernels.
        """
        self.workers = workers
        self.memory_bytes = memory_bytes
        self.everything = everything
        self.costs = costs
        self._cache = None if cache is None else Cache(cache)
        self._running: dict[str, Future[CompileReport]] = {}
        self._close = contextlib.ExitStack()

    def submit(self, program: LoweredProgram, *, timeout: float) -> Future[CompileReport]:
        """Compile a program for its chip, or look up how that went before.

        The report's ``message`` is empty: it is made of ``text`` by who knows the kernel.

        Args:
          program: what to compile.
          timeout: seconds after which the worker is killed.
        """
        compiler = compiler_of(program.platform)
        key = self._key(program, compiler)
        running = self._running.get(key)
        if running is not None and program.dump is None:
            return running
        known = None if self._cache is None or program.dump is not None else self._cache.get(key)
        future: Future[CompileReport] = Future()
        if known is not None:
            try:
                future.set_result(dataclasses.replace(reports.from_json(known), cached=True))
            except DataError:  # not what this version writes
                known = None
        if known is None:
            request = CompileRequest(
                target=program.target,
                module=program.module,
                devices=program.devices,
                dump="" if program.dump is None else str(program.dump),
                chip=added_facts(program.target),
            )
            setup = self._setup(program, compiler)
            job = self._pool.submit(setup, request.encode(), timeout=timeout)
            job.add_done_callback(self._finish(future, key, program.target, compiler))
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
        # Compilers write much that is read once: in memory that takes half the time.
        shared = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="pytest-pallas-", dir=shared))
        self._close.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _setup(self, program: LoweredProgram, compiler: ModuleType) -> WorkerSetup:
        environment: Mapping[str, str] = compiler.environment(
            self._scratch, target=program.target, everything=self.everything, costs=self.costs
        )
        return WorkerSetup(
            name=compiler.__name__.rpartition(".")[2],
            entry=compiler.ENTRY,
            environment=tuple(sorted(environment.items())),
            memory_bytes=self.memory_bytes,
        )

    def _key(self, program: LoweredProgram, compiler: ModuleType) -> str:
        parts = (program.module, program.target, str(program.devices))
        facts = added_facts(program.target)  # they may change
        if facts:
            parts = (*parts, str(facts))
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
            except Exception as error:  # or a wait for the future never ends
                problem = f"the worker's answer cannot be read: {type(error).__name__}: {error}"
                future.set_exception(PallasError(problem))
                return
            # What a worker could not do says nothing about the next time.
            if self._cache is not None and report.status in ("compiled", "refused"):
                self._cache.put(key, reports.to_json(report))
            future.set_result(report)

        return finish


@functools.cache
def _versions(compiler: ModuleType) -> tuple[str, str]:
    """The versions of a compiler and of what lowers for it: files are read to find them."""
    return compiler.version(), metadata.version("jaxlib")


def _report(result: JobResult, *, target: str, compiler: str) -> CompileReport:
    """The report that a worker's result means."""
    if result.status == "done":
        reply = CompileReply.decode(result.value)
        if reply.compiled:
            return reports.compiled(reply, target=target, compiler=compiler, seconds=result.seconds)
        status, text = "refused", f"{reply.message}\n{result.output}".strip()
    elif result.status == "raised":
        status, text = "crashed", f"{result.message}\n{result.output}".strip()
    else:
        status, text = result.status, f"{result.message}\n{result.output}".strip()
    return CompileReport(
        target=target, status=status, text=text, compiler=compiler, seconds=result.seconds
    )


def compiler_of(platform: str) -> ModuleType:
    """The module that knows the compiler of a platform."""
    import importlib

    name = {"tpu": "libtpu", "gpu": "cuda"}[platform]
    return importlib.import_module(f"pytest_pallas.compilers.{name}")
