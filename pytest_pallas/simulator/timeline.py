"""What a run did when: kernels, programs, waits, signals and copies, for a drawing of time.

The time is the number of equations that the machine had evaluated. Nothing is kept unless a machine
has a ``Timeline``; ``trace_events.py`` writes one in the format of trace viewers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from pytest_pallas.findings import Owner

if TYPE_CHECKING:
    from pytest_pallas.simulator.machine import Machine, Thread
    from pytest_pallas.simulator.transfers import Copy, Semaphore

#: What a core does for some time. ``"start"`` and ``"signal"`` take one equation, which starts a
#: copy or adds to a semaphore. ``"meeting"``: it waits until other cores are at the same place.
Kind = Literal["kernel", "body", "wait", "signal", "start", "meeting"]

#: What happens to a copy. ``"waited"``: a wait took its bytes.
Moment = Literal["read", "written", "waited"]


@dataclass(slots=True, eq=False)
class Span:
    """Something that a core did from one time to another.

    Attributes:
      owner: the core.
      kind: what it did.
      name: what a reader sees.
      begin: when.
      end: when; None while it goes on.
      facts: what else is known: the line, the grid point, amounts.
      unfinished: whether the run ended before it did.
      parent: the span of the same core that it is in, or None.
    """

    owner: Owner
    kind: Kind
    name: str
    begin: int
    end: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    unfinished: bool = False
    parent: Span | None = None


@dataclass(slots=True, eq=False)
class CopySpan:
    """A copy from its start to the last thing that happened to it.

    Attributes:
      owner: who started it.
      name: ``source -> target``.
      begin: when it was started.
      end: when the last thing happened.
      moments: what happened when, with how many bytes.
      facts: what else is known.
    """

    owner: Owner
    name: str
    begin: int
    end: int
    moments: list[tuple[int, Moment, int]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrow:
    """What one span gave to another: a start its copy, a signal or a copy the wait that took it.

    Attributes:
      source: from where.
      given: when.
      target: to where.
      taken: when.
    """

    source: Span | CopySpan
    given: int
    target: Span | CopySpan
    taken: int


@dataclass(slots=True, eq=False)
class _Given:
    """What a semaphore got and no wait has taken."""

    source: Span | CopySpan
    time: int
    amount: int


@dataclass(eq=False)
class Timeline:
    """What a run did when.

    Attributes:
      spans: of cores, in the order in which they began. Those of one core are nested.
      copies: in the order in which they were started.
      arrows: between them. A wait takes what its semaphore got first.
      time: of the last thing that happened.
    """

    spans: list[Span] = field(default_factory=list)
    copies: list[CopySpan] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    time: int = 0
    _open: dict[Owner, list[Span]] = field(default_factory=dict)
    _last: dict[Owner, int] = field(default_factory=dict)
    _moving: WeakKeyDictionary[Copy, CopySpan] = field(
        default_factory=lambda: WeakKeyDictionary["Copy", CopySpan]()
    )
    _given: WeakKeyDictionary[Semaphore, deque[_Given]] = field(
        default_factory=lambda: WeakKeyDictionary["Semaphore", deque[_Given]]()
    )

    def begin(self, thread: Thread, kind: Kind, name: str, **facts: Any) -> Span:
        """A core begins something.

        Args:
          thread: the core.
          kind: what. An equation begins before it is counted, a body with its first equation.
          name: what a reader sees.
          facts: what else is known.
        """
        time = thread.machine.steps - (kind not in ("body", "kernel"))
        span = Span(thread.owner, kind, name, max(time, self._last.get(thread.owner, 0)))
        span.facts = facts
        if thread.program:
            facts.setdefault("program", list(thread.program))
        opened = self._open.setdefault(thread.owner, [])
        span.parent = opened[-1] if opened else None
        opened.append(span)
        self.spans.append(span)
        self._last[thread.owner] = span.begin
        return span

    def body(self, thread: Thread) -> Span:
        """A core begins the body of a kernel, for the program that it is at if there is a grid."""
        name = thread.place if thread.program else f"body of {thread.place}"
        return self.begin(thread, "body", name)

    def end(self, thread: Thread, span: Span) -> None:
        """A core ends what it began; what it began since then, and did not end, is unfinished."""
        time = self._now(thread.machine)
        opened = self._open.get(thread.owner, [])
        while span in opened:
            last = opened.pop()
            last.end = time
            last.unfinished = last is not span
        self._last[thread.owner] = time

    def start(self, thread: Thread, copy: Copy) -> None:
        """A core starts a copy."""
        name = f"{copy.names[0] or 'memory'} -> {copy.names[1] or 'memory'}"
        span = self.begin(thread, "start", f"start {name}", line=copy.line, bytes=copy.size)
        self.end(thread, span)
        facts = {"line": copy.line, "bytes": copy.size, "program": list(copy.program)}
        if copy.home != copy.owner.device:
            facts["to device"] = copy.home
        moved = CopySpan(copy.owner, name, span.begin, self.time, facts=facts)
        self._moving[copy] = moved
        self.copies.append(moved)
        self.arrows.append(Arrow(span, span.begin, moved, span.begin))

    def move(self, machine: Machine, copy: Copy, what: Literal["read", "written"], n: int) -> None:
        """A chunk of ``n`` bytes of a copy was read, or written."""
        moved = self._moved(machine, copy, what, n)
        semaphore = copy.sent if what == "read" else copy.done
        if moved is not None and semaphore is not None:
            self._give(semaphore, moved, n)

    def prove(self, machine: Machine, copy: Copy) -> None:
        """A wait took the bytes of a copy."""
        self._moved(machine, copy, "waited", copy.size)

    def signal(self, thread: Thread, semaphore: Semaphore, amount: int, line: str) -> None:
        """A core adds to a semaphore."""
        span = self.begin(thread, "signal", f"signal {semaphore.name}", line=line, amount=amount)
        self.end(thread, span)
        self._give(semaphore, span, amount)

    def wait(self, thread: Thread, semaphore: Semaphore, needed: int, line: str) -> Span:
        """A core begins to wait for a semaphore."""
        name, had = f"wait {semaphore.name}", semaphore.count
        unit = "bytes" if semaphore.kind == "dma" else semaphore.kind
        return self.begin(thread, "wait", name, line=line, needed=needed, had=had, unit=unit)

    def satisfy(self, thread: Thread, span: Span, semaphore: Semaphore, *, takes: bool) -> None:
        """The wait of a core is satisfied, and takes what it needed unless it only looks."""
        self.end(thread, span)
        given, needed = self._given.get(semaphore, deque[_Given]()), span.facts["needed"]
        for each in list(given):
            if needed <= 0:
                break
            self.arrows.append(Arrow(each.source, each.time, span, self.time))
            part = min(needed, each.amount)
            needed -= part
            if takes:
                each.amount -= part
                if not each.amount:
                    given.popleft()

    def close(self) -> None:
        """End what is still going on: the run was ended by an error."""
        for spans in self._open.values():
            for span in spans:
                span.end, span.unfinished = self.time, True
            spans.clear()

    def _now(self, machine: Machine) -> int:
        self.time = max(self.time, machine.steps)
        return self.time

    def _moved(self, machine: Machine, copy: Copy, what: Moment, size: int) -> CopySpan | None:
        moved = self._moving.get(copy)
        if moved is not None:
            moved.end = self._now(machine)
            moved.moments.append((moved.end, what, size))
        return moved

    def _give(self, semaphore: Semaphore, source: Span | CopySpan, amount: int) -> None:
        given = self._given.setdefault(semaphore, deque[_Given]())
        given.append(_Given(source, self.time, amount))
