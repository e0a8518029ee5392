"""Findings: what is wrong with a kernel, whatever it returned, as data.

The simulator's monitors and the watchers of JAX's interpreters give these. Text (``str``), JSON
(``to_json``) and the pictures of the report are made of them; nothing is read out of a text.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple

# Lines of source code: where something is, as data.
#
# Findings, records and messages have ``file:line`` in text, because a line may also be the name of
# a place that has none, such as "the end of the kernel". ``read`` is the one function that takes
# such a text apart.


class SourceLine(NamedTuple):
    """A line of a file.

    Attributes:
      file: its path.
      line: its number, from 1.
    """

    file: str
    line: int

    def __str__(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """``file:line`` without the folders of the file."""
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """What stands there, without its indentation; "" if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()


#: A line of code without a file; see ``generated_line``.
_GENERATED = re.compile(r"(?P<caller>.+:\d+) \(in [^ ]+(, line \d+|, (?P<own>.+:\d+))\)")


def generated_line(caller: SourceLine | None, own: SourceLine, function: str) -> str:
    """Return how code that ``exec`` made is named: ``FILE:LINE (in FUNCTION, line 3)``.

    A name such as ``<string>`` is left out, unless ``linecache`` knows the lines of that name, as
    those of a cell of a notebook: then it follows the function, and ``read`` returns it.

    Args:
      caller: the nearest line in a file that called it; None if there is none.
      own: where it is, by the name that it was compiled with.
      function: the name of its function.
    """
    # From Python 3.13 on, ``linecache`` has lines of this name: those of ``python -c``.
    named = own.file != "<string>" and (own.file[0] != "<" or bool(own.text))
    if caller is None:
        return str(own) if named else f"line {own.line} of {function}, which has no file"
    return f"{caller} (in {function}, {own if named else f'line {own.line}'})"


def read(text: str) -> SourceLine | None:
    """Return the line that ``file:line`` names; None of any other text.

    Of code that ``exec`` made, it is the line of that if it can be read, else that of its caller.
    """
    generated = _GENERATED.fullmatch(text)
    if generated is not None:
        own = read(generated["own"] or "")
        return own if own is not None and own.text else read(generated["caller"])
    file, _, line = text.rpartition(":")
    number = line.isdecimal() and len(line) < 10
    return SourceLine(file, int(line)) if file and number else None


def line_in_file(text: str) -> SourceLine | None:
    """Return the line that ``file:line`` names; None of code that no file has, and other text."""
    line, generated = read(text), _GENERATED.fullmatch(text)
    called_there = generated is not None and line == read(generated["caller"])
    return None if called_there else line


def short(text: str) -> str:
    """Return ``file:line`` without the folders of the file; any other text as it is."""
    line = read(text)
    return text if line is None else line.short


def text_at(text: str) -> str:
    """Return what stands at ``file:line``, without its indentation; "" if it cannot be read."""
    line = read(text)
    return "" if line is None else line.text


@dataclass(frozen=True)
class Lines:
    """Marks a text that may have several lines, and colours."""


#: A text of several lines.
Text = Annotated[str, Lines()]

#: ``"bounds"``: an access or a block beyond the edges of its array. ``"input-write"``: a write to
#: the window of an input that no output shares. ``"capacity"``: memory that the chip does not have.
#: ``"spill"``: registers that a thread does not have, so that the compiler uses memory for them.
#: ``"assertion"``: a ``pl.debug_check`` that does not hold. ``"race"``: two accesses to the same
#: memory that nothing orders, of which one writes. ``"unwaited"``: a copy that nothing waits for.
#: ``"leftover"``: what a semaphore has when it ends. ``"deadlock"``: waits that never end.
#: ``"entry"``: memory or a semaphore of a device that is not known to have entered the kernel, or
#: that has left it. ``"uninitialized"``: a load of uninitialized memory. ``"overwritten"``: a
#: block of an input that shares an output's memory, fetched for a program after another wrote it.
#: ``"phase"``: arrivals that the phase of a barrier cannot take, or a phase that a thread misses.
#: ``"undefined"``: what the documents of the hardware leave undefined.
Kind = Literal[
    "bounds",
    "input-write",
    "capacity",
    "spill",
    "assertion",
    "race",
    "unwaited",
    "leftover",
    "deadlock",
    "entry",
    "uninitialized",
    "overwritten",
    "phase",
    "undefined",
]

#: What is wrong with copies, semaphores and barriers, whatever a run's answer is.
OF_TRANSFERS: frozenset[Kind] = frozenset({"entry", "unwaited", "leftover", "phase", "undefined"})


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who does something: a core of a TPU, or a thread of a GPU.

    Attributes:
      device: its number in the mesh.
      core: number of the core, or None where a device has one.
      thread: ``"block 0, warpgroup 1"`` on a GPU, with the kind of the core where a chip has
        several kinds, or "".
    """

    device: int = 0
    core: int | None = None
    thread: str = ""

    def __str__(self) -> str:
        """``device 1, core 0``."""
        core = None if self.core is None else f"core {self.core}"
        return ", ".join(word for word in (f"device {self.device}", core, self.thread) if word)


@dataclass(frozen=True, kw_only=True)
class Access:
    """A read or a write of memory.

    Attributes:
      kind: ``"read"`` or ``"write"``.
      ref: name of the reference.
      owner: who made it, or who started the copy that did.
      home: the device whose memory it is, if not the owner's.
      index: the elements along each axis: ``(start, stop)``; () for all.
      line: ``file:line``, or what stands there: ``"the block copy of pallas_call"``; or "".
      program: the grid point, or ().
      copy: whether a copy (DMA) made it.
      by: what made it for the owner, in words: ``"the TMA copy"``; "" for the owner or a DMA.
      clock: the owner's count of steps, by which accesses are ordered.
      step: of a copy: which of the copies that its owner started at this line, from 1; or 0.
      steps: how many these are.
    """

    kind: Literal["read", "write"]
    ref: str
    owner: Owner
    home: int | None = None
    index: tuple[tuple[int, int], ...] = ()
    line: str = ""
    program: tuple[int, ...] = ()
    copy: bool = False
    by: str = ""
    clock: int = 0
    step: int = 0
    steps: int = 0

    def __str__(self) -> str:
        """``write of o_ref[0:8] on device 1 by a copy of device 0, at FILE:LINE``."""
        part = ", ".join(f"{start}:{stop}" for start, stop in self.index)
        text = f"{self.kind} of {self.ref or 'memory'}" + (f"[{part}]" if part else "")
        if self.home is not None and self.home != self.owner.device:
            text += f" on device {self.home}"
        by = self.by or ("a copy" if self.copy else "")
        text += f" by {by and by + ' of '}{self.owner}{_of(self.step, self.steps)}"
        return text + _at(self.line, self.program)


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a wait could have taken: a signal, or the bytes of a copy.

    Attributes:
      owner: who signalled, or started the copy.
      amount: what the semaphore gets.
      line: ``file:line``, or "".
      program: the grid point, or ().
      copy: whether it is that of a copy (DMA).
      step: of a copy: see ``Access``.
      steps: likewise.
    """

    owner: Owner
    amount: int
    line: str = ""
    program: tuple[int, ...] = ()
    copy: bool = False
    step: int = 0
    steps: int = 0

    def __str__(self) -> str:
        """``4096 bytes of the copy of device 0, at FILE:LINE``."""
        what = f"{self.amount} bytes of the copy" if self.copy else f"a signal of {self.amount}"
        who = f"{'of' if self.copy else 'from'} {self.owner}{_of(self.step, self.steps)}"
        return f"{what} {who}{_at(self.line, self.program)}"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A thread that waits.

    Attributes:
      owner: who waits.
      on: what for: the name of a semaphore, or of a barrier; "" if that is not known.
      needed: how much it needs; 0 of one that waits for the others, or is at the end.
      had: how much there is.
      unit: ``"bytes"``, ``"arrivals"``, or "" for a count.
      line: ``file:line``, or what stands there: ``"the end of the kernel"``.
      program: the grid point, or ().
      signals: those that are not ordered with it, so that each of them could have satisfied it.
      copies: how many copies signal the semaphore, if it is that of a copy; 0 if that is not known.
    """

    owner: Owner
    on: str
    needed: int = 0
    had: int = 0
    unit: str = ""
    line: str = ""
    program: tuple[int, ...] = ()
    signals: tuple[Signal, ...] = ()
    copies: int = 0

    def __str__(self) -> str:
        """``device 1 is blocked on semaphore `done`: needs 4096 bytes, has 0, at FILE:LINE``."""
        if not self.needed:
            waits = f"waits for {self.on} at" if self.on else "is at"
            return f"{self.owner} {waits} {self.line or 'an unknown line'}"
        unit = f" {self.unit}" if self.unit else ""
        if self.unit == "arrivals":
            what = f"at {self.on or 'a barrier'}"
        else:
            what = f"on semaphore `{self.on}`" if self.on else "on a semaphore"
        return (
            f"{self.owner} is blocked {what}: needs {self.needed}{unit}, "
            f"has {self.had}{_at(self.line, self.program)}"
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong with a kernel, whatever its answer.

    Attributes:
      kind: what is wrong; see ``Kind``.
      message: one sentence, with the numbers.
      kernel: name of the kernel, or "".
      program: the grid point, or () outside of a grid.
      line: ``file:line`` of the access, or "".
      ref: name of the reference, or "".
      index: the index that was used, one entry for each axis, or ().
      shape: of the memory that was accessed.
      accesses: of a race and of what was overwritten, both; of an entry, the one that comes too
        early or too late.
      waits: of a deadlock, all threads that wait; of a race, the waits that do not order it; of
        what a semaphore has at its end, those that took from it.
      signals: of what a semaphore has at its end, all that was given.
      seed: of the schedule in which it was seen.
      owners: on which cores it is so, where the message says nothing of them.
      dropped: of a load beyond an edge: whether the value is shown to reach nothing; of a store
        to the window of an input: whether the window is fetched anew before it is read again.
    """

    kind: Kind
    message: Text
    kernel: str = ""
    program: tuple[int, ...] = ()
    line: str = ""
    ref: str = ""
    index: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    accesses: tuple[Access, ...] = ()
    waits: tuple[Wait, ...] = ()
    signals: tuple[Signal, ...] = ()
    seed: int = 0
    owners: tuple[Owner, ...] = ()
    dropped: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for findings that are the same mistake at another grid point or device."""
        return (self.kind, self.kernel, self.line, self.ref, *(a.line for a in self.accesses))

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """The sentence and where; below it, accesses and waits, a line each."""
        where = self.kernel
        if self.program:
            program = f"program ({', '.join(map(str, self.program))})"
            where = f"{program} of {where}" if where else program
        who = f"{_some(self.owners)}: " if self.owners else ""
        drop = _DROPPED.get(self.kind, "") if self.dropped else ""
        parts = [
            who + self.message + drop,
            where and f"in {where}",
            self.line and f"at {self.line}",
        ]
        first = " ".join(word for word in parts if word)
        return "\n  ".join([first, *_lines(self)])


#: What is said of what reaches nothing, by kind.
_DROPPED: dict[Kind, str] = {
    "bounds": " (read and dropped: no result depends on the value)",
    "input-write": " (here each step fetches its block anew)",
}

#: How many accesses, waits and signals of a finding are written one by one.
_SHOWN = 4


def text_of(findings: Sequence[Finding]) -> str:
    """Return what an error says of its findings: the first few, and how many more there are."""
    lines = [str(finding) for finding in findings[:_SHOWN]]
    more = len(findings) - _SHOWN
    return "\n  ".join([*lines, f"and {more} more"] if more > 0 else lines)


def _some(owners: Sequence[Owner]) -> str:
    more = f" and {len(owners) - _SHOWN} more" if len(owners) > _SHOWN else ""
    return ", ".join(map(str, owners[:_SHOWN])) + more


def _lines(finding: Finding) -> list[str]:
    lines = [str(access) for access in finding.accesses[:_SHOWN]]
    lines += [f"given: {signal}" for signal in finding.signals[:_SHOWN]]
    if len(finding.signals) > _SHOWN:
        lines.append(f"given: {len(finding.signals) - _SHOWN} more")
    if finding.signals and not finding.waits:
        lines.append("taken: nothing")
    for wait in finding.waits[:_SHOWN]:
        if finding.kind == "deadlock":
            lines.append(str(wait))
        if finding.kind == "leftover":
            unit = f" {wait.unit}" if wait.unit else ""
            lines.append(f"taken: {wait.needed}{unit} by {wait.owner}{_at(wait.line, ())}")
        for signal in wait.signals[:_SHOWN]:
            lines.append(f"the wait on `{wait.on}` can be satisfied by {signal}")
        if wait.copies > 1 and len(wait.signals) > 1 and finding.kind == "race":
            lines.append(
                f"`{wait.on}` on {wait.owner} serves {wait.copies} copies, and a wait cannot tell "
                "which of them is done: give each step a semaphore of its own, or let the sender "
                "wait for the receiver"
            )
    more = len(finding.waits) - _SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _of(step: int, steps: int) -> str:
    """Return which copy of several, such as `` (copy 2 of 3)``."""
    return f" (copy {step} of {steps})" if steps > 1 else ""


def _at(line: str, program: tuple[int, ...]) -> str:
    at = f", at {line}" if line else ""
    return at + (f", program ({', '.join(map(str, program))})" if program else "")
