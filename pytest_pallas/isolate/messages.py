"""Messages to and from a worker: a process that this one starts, on this machine.

Requests are JSON: what files or other machines have said may be in them. Replies are pickles, which
come over a pipe of the two, from a process that has run this project's tests and nothing else.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pallas_sim.errors import Explanation, Fact, PallasError
from pallas_sim.findings import Text
from pytest_pallas import checks
from pytest_pallas.backends.ending import LEAST, limit_of, longest
from pytest_pallas.backends.protocol import label
from pytest_pallas.decoding import (
    AsWritten,
    Count,
    DataError,
    Exact,
    Matching,
    decode,
    parse,
    tagged,
    untagged,
)
from pytest_pallas.errors import CrashError, HangError, IsolationError, OutOfMemoryError, is_own
from pytest_pallas.pytest_session import Part, PytestSession
from pytest_pallas.session import SpecFacts
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

if TYPE_CHECKING:
    from pytest_pallas.backends.protocol import Call


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The configuration of a worker's session. Equal ones have equal bytes.

    Attributes:
      args: the command line of pytest.
      folder: its working directory at the start.
      options: changes of the options of the command line.
      attributes: attributes of the configuration, such as ``workerinput``.
      chooses: whether ``--lf`` and the like choose tests there.
    """

    args: Sequence[Exact]
    folder: Exact
    options: Mapping[Exact, Annotated[Any, AsWritten()]]
    attributes: Mapping[Exact, Annotated[Any, AsWritten()]]
    chooses: bool = False


_Base64 = Annotated[
    str,
    Matching("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", "bytes in base64"),
]

#: A change of the database of failing examples, see ``database.recorded``: what, key and value.
type Change = tuple[Literal["save", "delete"], _Base64, _Base64]


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """A test to run.

    Attributes:
      opening: an encoded ``Opening``, the same for all requests to a worker.
      nodeid: node id of the test.
      path: the file to collect, absolute or seen from pytest's root folder; None if the test comes
        from a hook.
      timeout: time limit in seconds for one step of a kernel.
      seconds: time to fuzz, with ``--pallas-fuzz-time``.
      journal: the file for the verdicts of its mutants, or None.
      raised: the kernels that raised in earlier tests, as in ``PytestSession``; None where the
        other process decides whether a test runs.
      part: the part of the item to run; None for the whole.
      killed: names of the tests and specs that killed mutants, by key, which do not run again.
      facts: what the reporting process has learned of the specs of the file; None if the worker
        learns it itself.
      learns: the spec, by file and name, of which the worker learns the facts in place of a test.
    """

    opening: bytes
    nodeid: Exact
    path: Exact | None
    timeout: float
    seconds: float | None = None
    journal: Exact | None = None
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] | None = None
    part: Part | None = None
    killed: Mapping[Exact, Exact] = field(default_factory=dict[str, str])
    facts: Mapping[tuple[Exact, Exact], SpecFacts] | None = None
    learns: tuple[Exact, Exact] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerReply:
    """The result of a test.

    Attributes:
      reports: from ``pytest_report_to_serializable``; empty if there is no such test.
      warnings: arguments of ``pytest_warning_recorded``.
      hazards: reasons to isolate its calls (``analysis.hazards``); None if it made no call.
      stained: whether it changed state of the process that could not be undone, or closed the
        files that pytest captures output in.
      lost_places: as in ``Session``.
      exit: message and status of a ``pytest.exit`` in the test.
      killed: the mutants that the test killed, as in ``WorkerRequest``.
      facts: what was learned of a spec; None if it was not found, or nothing was asked.
    """

    reports: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()
    hazards: Sequence[str] | None = None
    stained: bool = False
    lost_places: Mapping[str, Text] = field(default_factory=dict[str, str])
    exit: tuple[Text, int | None] | None = None
    killed: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: SpecFacts | None = None


@dataclass(frozen=True, kw_only=True)
class StepNote:
    """The next step of a worker; the last note is the step in which it died.

    Attributes:
      step: the step in words.
      limit: its time limit in seconds.
      kernel, check, backend, family, mesh: those of the example, or of the spec's test.
      examples: number of started examples, with this one.
      drawn: the example, as names and texts of facts.
      running: the running kernels, as ``name at file:line``.
    """

    step: str
    limit: float
    kernel: str = ""
    check: str = ""
    backend: str = ""
    family: Text = ""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    examples: Count = 0
    drawn: Sequence[tuple[str, Text]] = ()
    running: Sequence[str] = ()

    def encode(self) -> bytes:
        """The note as bytes; cheap, because each example has several."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> StepNote | None:
        """The note; None if there is none, or half of one."""
        try:
            return decode(cls, parse(body)) if body else None
        except DataError:
            return None


#: The parts of requests, by name.
REQUESTS: Mapping[str, type[Any]] = {
    each.__name__: each for each in (Opening, Part, SpecFacts, WorkerRequest)
}


def encoded(message: WorkerRequest | WorkerReply | Opening) -> bytes:
    """A message as bytes. Objects in report properties that cannot be pickled become their repr."""
    if not isinstance(message, WorkerReply):
        return json.dumps(tagged(message, REQUESTS)).encode()
    try:
        return pickle.dumps(message)
    except Exception:
        plain = dataclasses.replace(
            message,
            reports=[_plain(report) for report in message.reports],
            warnings=[_plain(warning) for warning in message.warnings],
        )
        return pickle.dumps(plain)


def requested[T](kind: type[T], body: bytes) -> T:
    """The request, or the opening, of a worker.

    Raises:
      DataError: it is none.
    """
    return decode(kind, untagged(parse(body), REQUESTS))


def decoded(body: bytes) -> WorkerReply:
    """The reply, from a process that this one has started."""
    return pickle.loads(body)


def _plain(value: Any) -> Any:
    """A value in which objects that cannot be pickled are replaced by their repr."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


# The end of a worker: its alarm for steps that do not end, and the error of its test.


#: Limits on the lines of an example and their length.
_LINES, _WIDTH = 8, 300


class Alarm:
    """An ``Observer`` of calls that restarts the timer of ``faulthandler`` at each step.

    ``faulthandler`` needs neither the GIL nor the main thread, so it also ends a process whose
    kernel holds the GIL or is in XLA.
    """

    def __init__(self, say: Callable[[bytes], None], output: int) -> None:
        """Create without starting the timer.

        Args:
          say: sends a note to the parent.
          output: descriptor of the file for tracebacks, which the parent reads.
        """
        self._say, self._output = say, output
        self._timeout = LEAST
        self._note = StepNote(step="start", limit=LEAST)
        self.hazards: list[str] | None = None

    def begin(self, step: str, timeout: float, *, limit: float = 0.0, builder: Any = None) -> None:
        """Start a test with a time limit of ``timeout`` seconds for its kernels.

        Args:
          step: the first step.
          timeout: the limit of kernels.
          limit: that of the step, in seconds; by default that of any step.
          builder: the ``Result`` of the test, if it is that of a spec.
        """
        self._timeout = timeout
        self.hazards = None
        note = StepNote(step=step, limit=limit or longest(timeout))
        self._step(note if builder is None else dataclasses.replace(note, **_subject(builder)))

    def stop(self) -> None:
        """Stop the timer."""
        faulthandler.cancel_dump_traceback_later()

    def example(self, builder: Any, facts: Sequence[Fact]) -> None:
        """An example of a builder starts."""
        note = StepNote(
            step="an example",
            limit=longest(self._timeout),
            **_subject(builder),
            examples=builder.earlier + builder.examples,
            drawn=[(fact.name, fact.text[:_WIDTH]) for fact in facts[:_LINES]],
        )
        self._step(note)

    def traced(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call starts to be compiled and executed."""
        from pytest_pallas.grid.kernel_calls import hazards

        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr)
        self._begins(call, kernels)

    def simulated(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call starts to be simulated."""
        from pytest_pallas.grid.kernel_calls import hazards

        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr, simulated=True)
        self._begins(call, kernels)

    def _begins(self, call: Call, kernels: Sequence[Any]) -> None:
        running = [f"{kernel.name} at {kernel.source}" for kernel in kernels]
        self._step(
            dataclasses.replace(
                self._note, step="a kernel", limit=limit_of(call.timeout), running=running
            )
        )

    def ended(self, call: Call) -> None:
        """A call has finished."""
        del call
        limit = longest(self._timeout)
        self._step(dataclasses.replace(self._note, step="the rest", limit=limit, running=()))

    def _step(self, note: StepNote) -> None:
        self._note = note
        self._say(note.encode())
        faulthandler.dump_traceback_later(note.limit, exit=True, file=self._output)


def _subject(builder: Any) -> dict[str, Any]:
    """What a builder is of, for a note."""
    names = ("kernel", "check", "backend", "family")
    return {**{name: getattr(builder, name) for name in names}, "mesh": dict(builder.mesh)}


#: The first line of a thread's traceback by ``faulthandler``, and the line of a frame.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)

#: Useful lines in the output of a process that died.
_WORDS = re.compile(r"Check failed|terminate called|what\(\)|LLVM ERROR|free\(\)|malloc")

#: Folders of code that is never the cause of a hang.
_STANDARD = Path(sysconfig.get_path("stdlib"))
_FOREIGN = ("jax/_src/", "/_pytest/", "/pluggy/", "/hypothesis/", "/numpy/", "/xdist/", "<frozen ")


@dataclass(frozen=True)
class Frame:
    """The current line of a thread."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        """In the form of other messages."""
        return f"{self.file}:{self.line} in {self.name}"


def error_of(result: JobResult, headline: str) -> PallasError:
    """The error for a worker that did not answer.

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
    kind, what = _what(result, note)
    explanation = Explanation(what, facts=tuple(_place(result.output, note)))
    return kind.explained(explanation, headline)


def _what(result: JobResult, note: StepNote | None) -> tuple[type[PallasError], str]:
    """The type of the error, and its summary."""
    limit = note.limit if note else 0.0
    hung = result.status == "timed out" or _TIMEOUT.search(result.output)
    if hung or (result.status == "crashed" and note and result.silence >= note.limit):
        step = "the kernel" if note and note.running else "a step"
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


def _place(output: str, note: StepNote | None) -> Iterator[Fact]:
    frame = place_of(output)
    if frame is not None:
        yield Fact("location", str(frame))
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
    words = [line.strip() for line in output.splitlines() if _WORDS.search(line)]
    for line in words[:3]:
        yield Fact("output", line[:200])


def place_of(output: str) -> Frame | None:
    """The innermost line of user code in the tracebacks of ``faulthandler``.

    The crashed thread comes first, then the other threads, which run callbacks and simulated
    devices, and the main thread last.
    """
    parts = list(_THREAD.finditer(output))
    ends = [*(part.start() for part in parts), len(output)][1:]
    threads = [
        (part.group(1) == "Current thread", _frames(output[part.end() : end]))
        for part, end in zip(parts, ends, strict=False)
    ]
    for _, frames in sorted(threads, key=lambda thread: not thread[0]):
        for frame in frames:
            if not _foreign(frame.file):
                return frame
    return None


def _frames(text: str) -> Sequence[Frame]:
    return [Frame(file, int(line), name) for file, line, name in _FRAME.findall(text)]


def _foreign(file: str) -> bool:
    path = Path(file)
    if any(part in path.as_posix() for part in _FOREIGN) or file.startswith("<"):
        return True
    if is_own(str(path)):
        return True
    return path.is_relative_to(_STANDARD) and "site-packages" not in path.parts


# Requests to a worker: how its session is set up, and how a test is run in it.


#: Seconds after a worker's own alarm until it is killed.
GRACE = 10.0

#: What most tests of kernels import, for ``WorkerSetup.preloads``.
_PRELOADS = (
    *("jax.experimental.pallas", "hypothesis.strategies", "pytest", "pytest_pallas.active"),
    *("pytest_pallas.isolate.worker", "pytest_pallas.isolate.isolator"),
    *("pytest_pallas.distribute.fleet.child", "pytest_pallas.distribute.gang.process"),
    *("pytest_pallas.run.calls", "pytest_pallas.run.collection"),
    *(f"pytest_pallas.checks.{name}" for name in checks.MODULES),
    *(f"pytest_pallas.checks.{name}" for name in checks.SANITIZER_MODULES),
    *("pytest_pallas.mutate.item", "pytest_pallas.run.item"),
    *("pytest_pallas.run.backends", "pytest_pallas.backends.simulators"),
    *("pallas_sim.simulation", "pytest_pallas.grid.kernel_calls"),
)

#: Modules that only some kernels import: a fork has them if the process that asks for it has.
_SOMETIMES = tuple(f"jax.experimental.pallas.{name}" for name in ("tpu", "mosaic_gpu", "triton"))

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


def preloads() -> tuple[str, ...]:
    """The modules that are imported once for all workers that run tests."""
    return (*_PRELOADS, *(name for name in _SOMETIMES if name in sys.modules))


def worker_setup(entry: str, generation: str, gigabytes: float, **environment: str) -> WorkerSetup:
    """The setup of a worker for tests.

    Args:
      entry: its entry.
      generation: of the worker; another one stops the worker before it.
      gigabytes: limit on its memory, in GiB.
      **environment: variables of its environment.
    """
    return WorkerSetup(
        name="test",
        job="the test",
        entry=entry,
        environment=(("PYTEST_PALLAS_WORKER", generation), *environment.items()),
        memory_bytes=int(gigabytes * 2**30),
        talks=True,
        preloads=preloads(),
    )


def opening_of(session: PytestSession, *, chooses: bool = False) -> Opening:
    """The session of a worker that runs the tests of this session.

    Args:
      session: of this process.
      chooses: whether it chooses tests and backends itself, because this process has none.
    """
    config = session.config
    options = {**OPTIONS, **({} if chooses else _CHOOSING)}
    if config.option.basetemp:
        # pytest clears that folder at its first use
        options["basetemp"] = f"{config.option.basetemp}-isolated"
    backends = () if chooses else session.selection.backends
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


def run_in(
    pool: WorkerPool, setup: WorkerSetup, request: WorkerRequest, message: bytes | None = None
) -> JobResult:
    """Run a test in a worker; again if it died of a mutant, which counts as killed.

    Args:
      pool: the pool of the worker.
      setup: the setup of the worker.
      request: the test.
      message: what the worker gets; None for the request.
    """
    payload = encoded(request) if message is None else message
    limit = longest(request.timeout) + GRACE
    while True:
        result = pool.submit(setup, payload, timeout=limit).result()
        if result.status == "done" or request.journal is None:
            return result
        from pytest_pallas.mutate.runner import died_of_a_mutant

        if not died_of_a_mutant(Path(request.journal), error_of(result, "")):
            return result
