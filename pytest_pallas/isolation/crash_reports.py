"""The end of a worker: its alarm for steps that do not end, and the error of its test."""

from __future__ import annotations

import dataclasses
import faulthandler
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import Explanation, Fact, PallasError
from pytest_pallas.backends.ending import LEAST, limit_of, longest
from pytest_pallas.errors import CrashError, HangError, IsolationError, OutOfMemoryError
from pytest_pallas.isolation.messages import StepNote
from pytest_pallas.own_code import is_own
from pytest_pallas.workers import JobResult

if TYPE_CHECKING:
    from pytest_pallas.backends import Call

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
          builder: the ``ResultBuilder`` of the test, if it is that of a spec.
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
        from pytest_pallas.analysis.hazards import hazards

        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr)
        self._begins(call, kernels)

    def simulated(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call starts to be simulated."""
        from pytest_pallas.analysis.hazards import hazards

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
