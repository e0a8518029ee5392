"""In the process that asks: start workers, run a test in one, and say how a worker ended.

``worker_setup`` and ``opening_of`` make a worker and its session like this one. ``run_in`` runs one
test. ``error_of`` makes the error of a worker that died, hung or used too much memory: of its last
note, and of what ``faulthandler`` has printed.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_sim.errors import Explanation, Fact, PallasError
from pytest_pallas import checks
from pytest_pallas.backends.ending import longest
from pytest_pallas.backends.protocol import label
from pytest_pallas.errors import CrashError, HangError, IsolationError, OutOfMemoryError, is_own
from pytest_pallas.isolate.messages import (
    KERNEL,
    Opening,
    StepNote,
    WorkerReply,
    WorkerRequest,
    encoded,
)
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

#: The entry of the workers; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.isolate.worker:serve"

#: Seconds after a worker's own alarm until it is killed.
GRACE = 10.0

_CHECKS = {**checks.MODULES, **checks.SANITIZER_MODULES}

#: What most tests of kernels import, for ``WorkerSetup.preloads``.
_PRELOADS = (
    *("jax.experimental.pallas", "hypothesis.strategies", "pytest", "pytest_pallas.active"),
    *("pytest_pallas.isolate.worker", "pytest_pallas.isolate.isolator"),
    *("pytest_pallas.run.calls", "pytest_pallas.run.collection"),
    *(f"pytest_pallas.checks.{module}" for module in sorted({*_CHECKS.values()})),
    *("pytest_pallas.mutate.item", "pytest_pallas.run.item"),
    *("pytest_pallas.run.backends", "pytest_pallas.backends.simulators"),
    *("pallas_sim.simulation", "pytest_pallas.grid.kernel_calls"),
)

#: Modules that only some kernels import: a fork has them if the process that asks for it has.
_SOMETIMES = tuple(f"jax.experimental.pallas.{name}" for name in ("tpu", "mosaic_gpu", "triton"))

#: Modules that almost all kernels of a platform import, where the worker starts before any of them.
_OF_PLATFORM: Mapping[str, tuple[str, ...]] = {
    "gpu": ("jax.experimental.pallas.mosaic_gpu", "pytest_pallas.backends.hardware"),
    "tpu": ("jax.experimental.pallas.tpu", "pytest_pallas.backends.hardware"),
}

#: Options that a worker must not use: start workers, debug, stop early, write files of the
#: reporting session, start other processes.
OPTIONS: Mapping[str, Any] = {
    "dist": "no",
    "tx": [],
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "distload": False,
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "stepwise": False,
    "cacheclear": False,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "log_file": "/dev/null",
    "pallas_fleet": "",
}

#: Options that leave out tests, or order them by earlier runs.
_CHOOSING: Mapping[str, Any] = {
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "pallas_shard": "",
}


@functools.cache
def preloads(platform: str = "") -> tuple[str, ...]:
    """List the modules that are imported once for all workers that run tests.

    The first call decides: with another list a worker has another setup, and the pool would replace
    the process that has collected the tests by a new one.

    Args:
      platform: of the devices that the worker owns; "" for none.
    """
    usual = [name for name in _SOMETIMES if name in sys.modules]
    return (*_PRELOADS, *_OF_PLATFORM.get(platform, usual))


def worker_setup(
    generation: int, gigabytes: float | None, platform: str = "", **environment: str
) -> WorkerSetup:
    """Make the setup of a worker for tests.

    Args:
      generation: of the worker; another one stops the worker before it.
      gigabytes: limit on its memory, in GiB; None for no limit.
      platform: of the devices that it owns; "" for none.
      **environment: variables of its environment.
    """
    return WorkerSetup(
        name="test",
        job="the test",
        entry=ENTRY,
        environment=(("PYTEST_PALLAS_WORKER", str(generation)), *environment.items()),
        memory_bytes=None if gigabytes is None else int(gigabytes * 2**30),
        talks=True,
        preloads=preloads(platform),
    )


def opening_of(session: PytestSession, *, chooses: bool = False) -> Opening:
    """Describe the session of a worker that runs the tests of this session.

    Args:
      session: of this process.
      chooses: whether it chooses tests and backends itself, because this process has none.
    """
    config = session.config
    options = {**OPTIONS, **({} if chooses else _CHOOSING)}
    if config.option.basetemp:
        # pytest clears that folder at its first use
        options["basetemp"] = f"{config.option.basetemp}-isolated"
    # Devices that this process has opened cannot be opened there.
    here = not chooses and session.elsewhere is None
    backends = session.selection.backends if here else ()
    if any(backend.kind == "hardware" for backend in backends):
        names = [label(b) for b in backends if b.kind != "hardware"]
        options["pallas_backend"] = ",".join(names)
    attributes: dict[str, Any] = {}
    if hasattr(config, "workerinput"):  # of pytest-xdist, for its fixtures
        attributes = {"workerinput": dict(config.workerinput), "workeroutput": {}}  # pyright: ignore[reportAttributeAccessIssue]
    return Opening(
        args=[str(arg) for arg in config.invocation_params.args],
        folder=str(config.invocation_params.dir),
        options=options,
        attributes=attributes,
        chooses=chooses,
    )


@dataclass(frozen=True)
class WorkerAnswer:
    """What came of a test in a worker.

    Attributes:
      result: of the job.
      reply: of the worker; None if it died.
      notes: what Hypothesis says of a shrunk example, with the blob that repeats it.
    """

    result: JobResult
    reply: WorkerReply | None
    notes: Sequence[str] = ()

    @property
    def ended_its_process(self) -> bool:
        """Whether the worker died, or can launch nothing more."""
        return self.reply is None or self.reply.lost


def run_in(pool: WorkerPool, setup: WorkerSetup, request: WorkerRequest) -> JobResult:
    """Run a test in a worker; again if it died of a mutant, which counts as killed."""
    payload = encoded(request)
    limit = longest(request.timeout) + GRACE
    while True:
        result = pool.submit(setup, payload, timeout=limit).result()
        if result.status == "done" or request.journal is None:
            return result
        from pytest_pallas.mutate.runner import died_of_a_mutant

        if not died_of_a_mutant(Path(request.journal), error_of(result, "")):
            return result


# The error of a worker that did not answer.


#: The first line of a thread's traceback by ``faulthandler``, and the line of a frame.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)

#: Useful lines in the output of a process that died.
_WORDS = re.compile(r"Check failed|terminate called|what\(\)|LLVM ERROR|free\(\)|malloc")

#: Folders of code that is never the cause of a hang.
_STANDARD = Path(sysconfig.get_path("stdlib"))
_FOREIGN = ("jax/_src/", "/_pytest/", "/pluggy/", "/hypothesis/", "/numpy/", "/xdist/", "<frozen ")


def error_of(result: JobResult, headline: str) -> PallasError:
    """Make the error for a worker that did not answer.

    Args:
      result: the result of its job.
      headline: the start of the message.
    """
    note = StepNote.decode(result.note)
    if result.status == "raised" or not result.started:
        text = f"{result.message}\n{result.output}".strip()
        return IsolationError(
            f"{headline}: the process for isolated tests failed: {text}\nIf the test runs with "
            "--pallas-isolate=never, the project has a set-up that cannot run twice: that process "
            "runs pytest's hooks of the conftest.py, too."
        )
    kind, summary = _kind_and_summary(result, note)
    explanation = Explanation(summary, facts=tuple(_facts_of_end(result.output, note)))
    return kind.explained(explanation, headline)


def _kind_and_summary(result: JobResult, note: StepNote | None) -> tuple[type[PallasError], str]:
    """Return the type of the error, and its summary."""
    limit = note.limit if note else 0.0
    hung = result.status == "timed out" or _TIMEOUT.search(result.output)
    if hung or (result.status == "crashed" and note and result.silence >= note.limit):
        step = "the kernel" if note and note.step == KERNEL else "a step"
        advice = "--pallas-timeout" if step == "the kernel" else "--pallas-timeout; steps "
        advice += "" if step == "the kernel" else "outside kernels may take a multiple of it"
        return HangError, (
            f"{step} did not end within {limit:g} s, so its process was killed. If it is only "
            f"slow, raise {advice}."
        )
    if result.status == "out of memory":
        return OutOfMemoryError, (
            f"its process {result.fate} Raise --pallas-worker-memory if it needs that much."
        )
    return CrashError, f"its process {result.fate}"


def _facts_of_end(output: str, note: StepNote | None) -> Iterator[Fact]:
    frame = place_of(output)
    if frame is not None:
        yield Fact("location", frame)
    if note is None:
        return
    for running in note.running[:-1]:
        yield Fact("running", running)
    for running in note.running[-1:]:
        compiled = frame is None and _THREAD.search(output)
        where = "\n(in compiled code: no Python code was running)" if compiled else ""
        yield Fact("running", running + where)
    if note.examples:
        yield Fact("example", f"number {note.examples}")
    for name, text in note.drawn:
        yield Fact(name, text)
    lines = [line.strip() for line in output.splitlines() if _WORDS.search(line)]
    for line in lines[:3]:
        yield Fact("output", line[:200])


def place_of(output: str) -> str | None:
    """Return ``file:line in function`` of the innermost user code in faulthandler's tracebacks.

    The crashed thread comes first, then the other threads, which run callbacks and simulated
    devices, and the main thread last.
    """
    parts = list(_THREAD.finditer(output))
    ends = [*(part.start() for part in parts), len(output)][1:]
    threads = zip(parts, ends, strict=False)
    for part, end in sorted(threads, key=lambda thread: thread[0][1] != "Current thread"):
        for file, line, name in _FRAME.findall(output[part.end() : end]):
            if not _foreign(file):
                return f"{file}:{int(line)} in {name}"
    return None


def _foreign(file: str) -> bool:
    path = Path(file)
    if any(part in path.as_posix() for part in _FOREIGN) or file.startswith("<") or is_own(file):
        return True
    return path.is_relative_to(_STANDARD) and "site-packages" not in path.parts
