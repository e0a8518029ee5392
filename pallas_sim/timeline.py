"""The timeline of a run: what its cores and copies did when, also as a file for trace viewers.

Time is the number of equations that the whole machine has evaluated. A ``Timeline`` is filled while
a run goes on: by ``machine.Thread.span`` with what a core does for some time, by ``copies`` with
copies and semaphores. ``timeline_text`` writes one in the Chrome trace event format
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from pallas_sim.errors import OptionError
from pallas_sim.findings import Access, Finding, Owner
from pallas_sim.recording import Copy, Semaphore

#: What a core does for some time. ``"start"`` and ``"signal"`` take one equation, which starts a
#: copy or adds to a semaphore. ``"meeting"``: it waits until other cores are at the same place.
Kind = Literal["kernel", "body", "wait", "signal", "start", "meeting"]

#: What happens to a copy. ``"waited"``: a wait took its bytes.
Moment = Literal["read", "written", "waited"]


@dataclass(slots=True, eq=False)
class TimelineSpan:
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
    parent: TimelineSpan | None = None


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
      sent: when.
      target: to where.
      received: when.
    """

    source: TimelineSpan | CopySpan
    sent: int
    target: TimelineSpan | CopySpan
    received: int


@dataclass(slots=True, eq=False)
class _Given:
    """What a semaphore got and no wait has taken."""

    source: TimelineSpan | CopySpan
    time: int
    amount: int


@dataclass(eq=False)
class Timeline:
    """What a run did when.

    Attributes:
      spans: of cores, in the order in which they began. Those of one core are nested.
      copies: in the order in which they were started.
      arrows: between them. A wait takes what its semaphore got first.
      accesses: when a core read or wrote memory: by owner, grid point, line and kind.
      races: findings with two accesses.
      turns: when the order of a witness leaves the plain one: time, of whom, and what happened.
      time: of the last thing that happened.
      steps: gives how many equations the machine has evaluated; the machine sets it.
    """

    spans: list[TimelineSpan] = field(default_factory=list)
    copies: list[CopySpan] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    accesses: dict[Any, list[int]] = field(default_factory=dict)
    races: list[Finding] = field(default_factory=list)
    turns: list[tuple[int, Owner, str]] = field(default_factory=list)
    time: int = 0
    steps: Callable[[], int] = lambda: 0
    _open: dict[Owner, list[TimelineSpan]] = field(default_factory=dict)
    _last: dict[Owner, int] = field(default_factory=dict)
    _moving: WeakKeyDictionary[Copy, CopySpan] = field(
        default_factory=WeakKeyDictionary[Copy, CopySpan]
    )
    _available: WeakKeyDictionary[Semaphore, deque[_Given]] = field(
        default_factory=WeakKeyDictionary[Semaphore, deque[_Given]]
    )

    def begin(
        self, owner: Owner, program: tuple[int, ...], kind: Kind, name: str, **facts: Any
    ) -> TimelineSpan:
        """Begin something that a core does.

        Args:
          owner: the core.
          program: the grid point that it is at, or ().
          kind: what. An equation begins before it is counted, a body with its first equation.
          name: what a reader sees.
          facts: what else is known.
        """
        time = self.steps() - (kind not in ("body", "kernel"))
        if program:
            facts.setdefault("program", list(program))
        opened = self._open.setdefault(owner, [])
        begin = self._last[owner] = max(time, self._last.get(owner, 0))
        parent = opened[-1] if opened else None
        span = TimelineSpan(owner, kind, name, begin, facts=facts, parent=parent)
        opened.append(span)
        self.spans.append(span)
        return span

    def end(self, span: TimelineSpan) -> None:
        """End what a core does; what it began since then, and did not end, is unfinished."""
        opened = self._open.get(span.owner, [])
        self._last[span.owner] = self._now()
        while span in opened:
            last = opened.pop()
            last.end = self.time
            last.unfinished = last is not span

    def start(self, copy: Copy) -> None:
        """Note that a core starts a copy."""
        name = f"{copy.names[0] or 'memory'} -> {copy.names[1] or 'memory'}"
        facts: dict[str, Any] = {"line": copy.line, "bytes": copy.size}
        span = self.begin(copy.owner, copy.program, "start", f"start {name}", **facts)
        self.end(span)
        facts["program"] = list(copy.program)
        if copy.home != copy.owner.device:
            facts["to device"] = copy.home
        moved = CopySpan(copy.owner, name, span.begin, self.time, facts=facts)
        self._moving[copy] = moved
        self.copies.append(moved)
        self.arrows.append(Arrow(span, span.begin, moved, span.begin))

    def move(self, copy: Copy, moment: Moment, size: int) -> None:
        """Note that a chunk of a copy was read, or written, or that a wait took all its bytes."""
        moved = self._moving.get(copy)
        if moved is None:
            return
        moved.end = self._now()
        moved.moments.append((moved.end, moment, size))
        semaphore = {"read": copy.sent, "written": copy.done}.get(moment)
        if semaphore is not None:
            self._give(semaphore, moved, size)

    def signal(
        self, owner: Owner, program: tuple[int, ...], semaphore: Semaphore, amount: int, line: str
    ) -> None:
        """Note that a core adds to a semaphore."""
        name = f"signal {semaphore.name}"
        span = self.begin(owner, program, "signal", name, line=line, amount=amount)
        self.end(span)
        self._give(semaphore, span, amount)

    def wait(
        self, owner: Owner, program: tuple[int, ...], semaphore: Semaphore, needed: int, line: str
    ) -> TimelineSpan:
        """Begin the wait of a core for a semaphore."""
        unit = "bytes" if semaphore.kind == "dma" else semaphore.kind
        facts = {"line": line, "needed": needed, "had": semaphore.count, "unit": unit}
        return self.begin(owner, program, "wait", f"wait {semaphore.name}", **facts)

    def satisfy(self, span: TimelineSpan, semaphore: Semaphore, *, takes: bool) -> None:
        """End a wait, which takes what it needed unless it only looks."""
        self.end(span)
        available, needed = self._available.get(semaphore, deque[_Given]()), span.facts["needed"]
        for gift in list(available):
            if needed <= 0:
                break
            self.arrows.append(Arrow(gift.source, gift.time, span, self.time))
            part = min(needed, gift.amount)
            needed -= part
            if takes:
                gift.amount -= part
                if not gift.amount:
                    available.popleft()

    def touch(self, owner: Owner, program: tuple[int, ...], line: str, *, writes: bool) -> None:
        """Note that a core reads or writes memory."""
        key = owner, program, line, "write" if writes else "read"
        self.accesses.setdefault(key, []).append(self._now())

    def mark(self, finding: Finding) -> None:
        """Note a finding, of which a race has two accesses to mark."""
        if finding.kind == "race" and len(finding.accesses) == 2:
            self.races.append(finding)

    def turn(self, owner: Owner, what: str) -> None:
        """Note that somebody is passed over in the order of a witness, or goes on after that."""
        self.turns.append((self._now(), owner, what))

    def close(self) -> None:
        """End what is still going on: the run was ended by an error."""
        for spans in self._open.values():
            for span in spans:
                span.end, span.unfinished = self.time, True
            spans.clear()

    def _now(self) -> int:
        self.time = max(self.time, self.steps())
        return self.time

    def _give(self, semaphore: Semaphore, source: TimelineSpan | CopySpan, amount: int) -> None:
        available = self._available.setdefault(semaphore, deque[_Given]())
        available.append(_Given(source, self.time, amount))


#: What one unit of time is, for readers of a file.
UNIT = "1 us is 1 equation evaluated by the whole machine"

#: The numbers of threads that copies are on begin here.
_COPIES = 10_000

#: How long before the end of the equation that gives or takes something its arrow begins or ends.
_BEFORE = 0.5

_Event = dict[str, Any]


def timeline_text(timeline: Timeline, about: Mapping[str, Any]) -> str:
    """Return the text of a file.

    Args:
      timeline: of a run that has ended.
      about: what else to say of the run, by name.
    """
    timeline.close()
    lines = ",\n".join(json.dumps(event) for event in events_of(timeline))
    other = json.dumps({"time": UNIT, **about})
    return f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [\n{lines}\n]}}\n'


def events_of(timeline: Timeline) -> list[_Event]:
    """Return the events of a file: names first, then everything by time."""
    threads = _threads({span.owner for span in timeline.spans})
    lanes = _lanes(timeline.copies)
    events: list[_Event] = []
    for owner, thread in threads.items():
        events += _spans(thread, [span for span in timeline.spans if span.owner == owner])
    for copy, lane in lanes.items():
        events += _copy(copy, lane)
    tracks = {**{span: threads[span.owner] for span in timeline.spans}, **lanes}
    events += _arrows(timeline, tracks)
    for number, race in enumerate(timeline.races, len(timeline.arrows)):
        events += _race(race, number, [_moments(timeline, tracks, a) for a in race.accesses])
    for time, owner, what in timeline.turns:
        # The last one is the step that the others overtook: with it the fault is complete.
        name = f"{what} (the last step out of order)" if what is timeline.turns[-1][2] else what
        thread = threads.get(owner, 0)
        events.append(_event("i", name, owner.device, thread, time, s="p", cat="order"))
    events.sort(key=lambda event: event["ts"])
    return [*_names(threads, lanes), *events]


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that a timeline can be written to.

    Raises:
      OptionError: it cannot.
    """
    file = Path(path).absolute()
    if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise OptionError(
            f"trace={str(path)!r}: cannot write there; give a file in a folder that exists"
        )
    return file


def _threads(owners: Iterable[Owner]) -> dict[Owner, int]:
    """Return a number for each core, of its device."""
    threads: dict[Owner, int] = {}
    count: Counter[int] = Counter()
    for owner in sorted(owners, key=_order):
        threads[owner] = count[owner.device]
        count[owner.device] += 1
    return threads


def _order(owner: Owner) -> tuple[Any, ...]:
    core = -1 if owner.core is None else owner.core
    # "subcore 10" comes after "subcore 9".
    return (owner.device, core, [int(word) for word in re.findall(r"\d+", owner.thread)])


def _event(phase: str, name: str, device: int, thread: int, time: float, **rest: Any) -> _Event:
    return {"ph": phase, "name": name, "pid": device, "tid": thread, "ts": time, **rest}


def _names(threads: Mapping[Owner, int], lanes: Mapping[CopySpan, int]) -> Iterator[_Event]:
    devices = dict.fromkeys(sorted(owner.device for owner in threads))
    for device in devices:
        yield _event("M", "process_name", device, 0, 0, args={"name": f"device {device}"})
        yield _event("M", "process_sort_index", device, 0, 0, args={"sort_index": device})
    tracks = [(owner.device, thread, _core(owner)) for owner, thread in threads.items()]
    copies = dict.fromkeys((copy.owner.device, lane) for copy, lane in lanes.items())
    tracks += [(device, lane, f"copies {lane - _COPIES}") for device, lane in sorted(copies)]
    for device, thread, name in tracks:
        yield _event("M", "thread_name", device, thread, 0, args={"name": name})
        yield _event("M", "thread_sort_index", device, thread, 0, args={"sort_index": thread})


def _core(owner: Owner) -> str:
    core = "" if owner.core is None else f"core {owner.core}"
    return ", ".join(word for word in (core, owner.thread) if word) or "core"


def _spans(thread: int, spans: Iterable[TimelineSpan]) -> Iterator[_Event]:
    """Begin and end of the spans of a thread, which are nested and in the order of their begin."""
    opened: list[TimelineSpan] = []
    for span in spans:
        while opened and opened[-1] is not span.parent:
            yield _end(thread, opened.pop())
        opened.append(span)
        yield _event(
            "B", span.name, span.owner.device, thread, span.begin, cat=span.kind, args=span.facts
        )
    while opened:
        yield _end(thread, opened.pop())


def _end(thread: int, span: TimelineSpan) -> _Event:
    more = {"args": {"unfinished": True}} if span.unfinished else {}
    assert span.end is not None
    return _event("E", span.name, span.owner.device, thread, span.end, **more)


def _copy(copy: CopySpan, lane: int) -> Iterator[_Event]:
    device = copy.owner.device
    yield _event("B", copy.name, device, lane, copy.begin, cat="copy", args=copy.facts)
    for time, what, size in copy.moments:
        yield _event("i", what, device, lane, time, s="t", cat="copy", args={"bytes": size})
    yield _event("E", copy.name, device, lane, copy.end)


def _lanes(copies: Iterable[CopySpan]) -> dict[CopySpan, int]:
    """Return a thread for each copy, of its device, on which no other copy is at that time."""
    free: dict[tuple[int, int], int] = {}
    lanes: dict[CopySpan, int] = {}
    for copy in copies:
        lane = _COPIES
        while free.get((copy.owner.device, lane), -1) > copy.begin:
            lane += 1
        free[copy.owner.device, lane] = copy.end
        lanes[copy] = lane
    return lanes


def _arrows(timeline: Timeline, tracks: Mapping[TimelineSpan | CopySpan, int]) -> Iterator[_Event]:
    for number, arrow in enumerate(timeline.arrows):
        source, target = arrow.source, arrow.target
        begin = _within(source, arrow.sent)
        end = max(begin, _within(target, arrow.received))
        rest = {"cat": "gives", "id": number}
        at, to = (source.owner.device, tracks[source]), (target.owner.device, tracks[target])
        yield _event("s", "gives", *at, begin, **rest)
        yield _event("f", "gives", *to, end, bp="e", **rest)


def _within(span: TimelineSpan | CopySpan, time: int) -> float:
    """Return a time inside of a span, just before ``time``: viewers look there for the span."""
    assert span.end is not None
    return min(max(time - _BEFORE, span.begin), span.end)


def _moments(
    timeline: Timeline, tracks: Mapping[TimelineSpan | CopySpan, int], access: Access
) -> list[tuple[float, int]]:
    """Return when an access was made, and on which thread of its device, as often as it was."""
    if access.copy:
        happened = "written" if access.kind == "write" else "read"
        copies = [
            copy
            for copy in timeline.copies
            if copy.owner == access.owner and copy.facts["line"] == access.line
        ]
        if 0 < access.step <= len(copies):
            copies = [copies[access.step - 1]]
        return [
            (_within(copy, time), tracks[copy])
            for copy in copies
            for time, moment, _ in copy.moments
            if moment == happened
        ]
    times = timeline.accesses.get((access.owner, access.program, access.line, access.kind), [])
    threads = (tracks[span] for span in timeline.spans if span.owner == access.owner)
    thread = next(threads, None)
    return [] if thread is None else [(time - _BEFORE, thread) for time in times]


def _race(
    race: Finding, number: int, sides: Sequence[Sequence[tuple[float, int]]]
) -> Iterator[_Event]:
    """Mark the two accesses of a race where they are nearest, and an arrow between them."""
    pairs = list(itertools.product(*sides))
    if not pairs:
        return
    nearest = min(pairs, key=lambda pair: abs(pair[0][0] - pair[1][0]))
    marks = sorted(
        zip(nearest, race.accesses, race.accesses[::-1], strict=True), key=lambda m: m[0]
    )
    for phase, ((time, thread), access, other) in zip("sf", marks, strict=True):
        device = access.owner.device
        facts = {"message": race.message, "access": str(access), "not ordered with": str(other)}
        name = f"race: {access.kind} of {access.ref or 'memory'}"
        yield _event("i", name, device, thread, time, s="t", cat="race", args=facts)
        bound = {"bp": "e"} if phase == "f" else {}
        yield _event(phase, "race", device, thread, time, cat="race", id=number, **bound)
