"""What became of a worker that did not answer, as an error that says where it was."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_pallas.errors import (
    CrashError,
    HangError,
    IsolationError,
    OutOfMemoryError,
    PallasTestError,
)
from pytest_pallas.explanations import Explanation, Fact
from pytest_pallas.isolation.messages import Note
from pytest_pallas.workers import Result

#: How ``faulthandler`` begins the traceback of a thread, and writes a frame of it.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)

#: Lines that a dying process printed which are worth a reader's time.
_WORDS = re.compile(r"Check failed|terminate called|what\(\)|LLVM ERROR|free\(\)|malloc")

#: Whose code is never what a kernel hangs in.
_PLUGIN = Path(__file__).parents[1]
_STANDARD = Path(sysconfig.get_path("stdlib"))
_FOREIGN = ("jax/_src/", "/_pytest/", "/pluggy/", "/hypothesis/", "/numpy/", "/xdist/", "<frozen ")


@dataclass(frozen=True)
class Frame:
    """A line that a thread was in."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        """As in other messages."""
        return f"{self.file}:{self.line} in {self.name}"


def error_of(result: Result, headline: str) -> PallasTestError:
    """The error for a worker that did not answer.

    Args:
      result: of its job.
      headline: how the message begins.
    """
    note = Note.decode(result.note)
    if result.status == "raised" or not result.started:
        text = f"{result.message}\n{result.output}".strip()
        return IsolationError(
            f"{headline}: the process for isolated tests failed: {text}\nIf the test runs with "
            "--pallas-isolate=never, something in the project cannot be set up twice: pytest's "
            "hooks of the conftest.py run in that process, too."
        )
    kind, what = _what(result, note)
    explanation = Explanation(what, facts=tuple(_place(result.output, note)))
    return kind.explained(explanation, headline)


def _what(result: Result, note: Note | None) -> tuple[type[PallasTestError], str]:
    """The kind of death, and what happened."""
    limit = note.limit if note else 0.0
    hung = result.status == "timed out" or _TIMEOUT.search(result.output)
    if hung or (result.status == "crashed" and note and result.silence >= note.limit):
        step = "the kernel" if note and note.running else "a step"
        advice = "--pallas-timeout" if step == "the kernel" else "--pallas-timeout, of which steps "
        advice += "" if step == "the kernel" else "outside kernels get a multiple"
        return HangError, (
            f"{step} did not end within {limit:g} s, and its process was ended. If it is only "
            f"slow, raise {advice}."
        )
    if result.status == "out of memory":
        return OutOfMemoryError, (
            f"its process {result.fate} Raise --pallas-worker-memory if it needs that much."
        )
    return CrashError, f"its process {result.fate}"


def _place(output: str, note: Note | None) -> Iterator[Fact]:
    frame = place_of(output)
    if frame is not None:
        yield Fact("it was in", str(frame))
    if note is None:
        return
    for running in note.running[:-1]:
        yield Fact("running", running)
    for running in note.running[-1:]:
        compiled = frame is None and _THREAD.search(output)
        where = "\n(in compiled code: no line of Python was being executed)" if compiled else ""
        yield Fact("running", running + where)
    if note.examples:
        yield Fact("example", f"number {note.examples}")
    for name, text in note.drawn:
        yield Fact(name, text)
    words = [line.strip() for line in output.splitlines() if _WORDS.search(line)]
    for line in words[:3]:
        yield Fact("it said", line[:200])


def place_of(output: str) -> Frame | None:
    """The innermost line of the user's that a thread was in, by what ``faulthandler`` wrote.

    The thread that crashed comes first, then those that are not the main thread (which is last):
    callbacks and the simulated devices run in them.
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
    if path.is_relative_to(_PLUGIN):
        return True
    return path.is_relative_to(_STANDARD) and "site-packages" not in path.parts
