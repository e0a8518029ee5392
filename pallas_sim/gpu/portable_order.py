"""The monitor of order among the programs of a grid on a GPU: races, element by element.

The programs of a grid run at the same time and in any order. So two of them must not access an
element of which one writes, unless atomics order them: an atomic whose result is used learns what
the programs knew that accessed the same element atomically before (Triton's atomics are
``acq_rel`` at the scope of the GPU). Each element has the last accesses of each kind, as in
FastTrack (Flanagan and Freund, PLDI 2009): numbers of events in arrays, so that an access costs a
few operations of numpy, whatever happened before. An element that is read, or accessed atomically,
by several programs keeps two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Access, Finding, Owner
from pallas_sim.machine import Thread

#: ``"volatile"``: a load that is no race with an atomic.
Kind = Literal["read", "write", "atomic", "volatile"]

#: Which earlier accesses an access is a race with.
_AGAINST: Mapping[Kind, tuple[Kind, ...]] = MappingProxyType(
    {
        "read": ("write", "atomic"),
        "write": ("write", "read", "atomic", "volatile"),
        "atomic": ("write", "read"),
        "volatile": ("write",),
    }
)

#: Bytes of the clocks that atomics leave at the elements that they access.
_CLOCK_BYTES = 1 << 26

#: Why it is none on the other platform, and what to do.
_TPU = "a TPU would allow it, where the grid is a loop: let one program loop, or use atomics"


class Selection(Protocol):
    """Which elements of an array an access touches, and of any other array of that shape."""

    def get(self, array: Array) -> Array:
        """Their values."""
        ...

    def put(self, array: Array, values: Any) -> None:
        """Change their values."""
        ...


@dataclass(slots=True, eq=False)
class GridProgram:
    """One program of a grid while it runs.

    Attributes:
      number: in the plain order.
      point: its indices, as the body counts them.
      time: how often it has synchronized, from 1.
      known: what it knows of the times of the others; None for nothing.
      last: its last access that may be a step of a loop that waits.
    """

    number: int
    point: tuple[int, ...]
    time: int = 1
    known: Array | None = None
    last: Any = None


@dataclass(frozen=True, slots=True)
class _Event:
    """Accesses of a program that happen at one line between two synchronizations."""

    program: tuple[int, ...]
    kind: Kind
    name: str
    line: str
    time: int


@dataclass(eq=False)
class GridOrder:
    """What is known of the order of the accesses of one grid.

    Attributes:
      programs: how many there are.
      events: so far; element 0 stands for none.
    """

    programs: int
    events: list[_Event | None] = field(default_factory=lambda: [None])
    _numbers: dict[Any, int] = field(default_factory=dict)
    _program: Array = field(default_factory=lambda: np.full(64, -1, np.int32))
    _time: Array = field(default_factory=lambda: np.zeros(64, np.int32))
    _left: dict[Any, Array] = field(default_factory=dict)
    _reported: set[Any] = field(default_factory=set)

    def event(self, me: GridProgram, kind: Kind, name: str, line: str) -> int:
        """The number of an event, the same for accesses that are ordered alike."""
        key = (me.number, kind, name, line, me.time)
        found = self._numbers.get(key)
        if found is not None:
            return found
        number = self._numbers[key] = len(self.events)
        self.events.append(_Event(me.point, kind, name, line, me.time))
        if number == len(self._program):
            self._program = np.concatenate([self._program, np.full(number, -1, np.int32)])
            self._time = np.concatenate([self._time, np.zeros(number, np.int32)])
        self._program[number], self._time[number] = me.number, me.time
        return number

    def unordered(self, me: GridProgram, events: Array) -> Array | None:
        """Which of some earlier events are another program's that does not come before ``me``.

        None if none is.
        """
        if not events.size:
            return None
        first = int(events.flat[0])
        if events.size == 1 or (events == first).all():
            other = int(self._program[first])
            if first == 0 or other == me.number:
                return None
            if me.known is not None and self._time[first] <= me.known[other]:
                return None
            return np.ones(events.shape, np.bool_)
        programs = self._program[events]
        wrong = (programs != me.number) & (events > 0)
        if me.known is not None:
            wrong &= self._time[events] > me.known[programs]
        return wrong if wrong.any() else None

    def same_program(self, events: Array, event: int) -> Array:
        """Which of some events are of the program of another one."""
        return self._program[events] == self._program[event]

    def synchronize(self, me: GridProgram, places: Sequence[Any], *, learns: bool) -> None:
        """Leave what ``me`` knows at elements that it accesses atomically.

        Args:
          me: the program.
          places: names of the elements.
          learns: whether it uses what it gets there, and so learns what others left.
        """
        most = max(64, _CLOCK_BYTES // (4 * max(self.programs, 1)))
        for place in places:
            if place not in self._left and len(self._left) >= most:
                place = hash(place) % most
            left = self._left.get(place)
            if learns and left is not None:
                me.known = left.copy() if me.known is None else np.maximum(me.known, left)
            known = np.zeros(self.programs, np.int32) if me.known is None else me.known
            left = known.copy() if left is None else np.maximum(left, known)
            left[me.number] = me.time
            self._left[place] = left
        me.time += 1

    def is_new(self, key: Any) -> bool:
        """Whether nothing of this key was reported, which it is from now on."""
        new = key not in self._reported
        self._reported.add(key)
        return new


@dataclass(eq=False)
class Shadow:
    """The last accesses to each element of an array, as numbers of events.

    Attributes:
      order: of the grid.
      shape: of the array.
    """

    order: GridOrder
    shape: tuple[int, ...]
    _last: dict[tuple[Kind, int], Array] = field(default_factory=dict)

    def note(
        self, thread: Thread, me: GridProgram, kind: Kind, where: Selection, at: tuple[str, str]
    ) -> None:
        """Note an access, and report it if it is a race.

        Args:
          thread: that makes it.
          me: the program.
          kind: of the access.
          where: which elements.
          at: name of the reference, and ``file:line``.
        """
        number = self.order.event(me, kind, *at)
        against = _AGAINST[kind]
        for (other, _), last in self._last.items():
            if other not in against:
                continue
            events = where.get(last)
            wrong = self.order.unordered(me, events)
            if wrong is not None:
                self._report(thread, number, where, events, wrong)
        self._keep(me, kind, where, number)

    def last(self, kind: Kind) -> tuple[Array | None, Callable[[int], Access]]:
        """The last accesses of a kind, as numbers or 0, and what has a number."""

        def access(number: int) -> Access:
            event = self.order.events[number]
            assert event is not None
            return _access(event, Owner(), ())

        return self._last.get((kind, 0)), access

    def _keep(self, me: GridProgram, kind: Kind, where: Selection, number: int) -> None:
        if kind == "write":
            where.put(self._of(kind, 0), number)
            return
        first = self._of(kind, 0)
        events = where.get(first)
        kept = self.order.unordered(me, events)
        if kept is None:
            where.put(first, number)
            return
        where.put(first, np.where(kept, events, number))
        second = self._of(kind, 1)
        where.put(second, np.where(kept, number, where.get(second)))

    def _of(self, kind: Kind, which: int) -> Array:
        found = self._last.get((kind, which))
        if found is None:
            found = self._last[kind, which] = np.zeros(self.shape, np.int32)
        return found

    def _report(
        self, thread: Thread, number: int, where: Selection, events: Array, wrong: Array
    ) -> None:
        order = self.order
        earlier = order.events[int(events[wrong].flat[0])]
        later = order.events[number]
        assert earlier is not None
        assert later is not None
        key = (later.line, later.kind, earlier.line, earlier.kind, later.name, earlier.name)
        if not order.is_new(key):
            return
        same = wrong & order.same_program(events, int(events[wrong].flat[0]))
        indices = where.get(np.arange(int(np.prod(self.shape))).reshape(self.shape))
        index = _box(indices[same], self.shape)
        thread.machine.report(_race(thread, later, earlier, index))


def _box(indices: Array, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The elements that some begin and end at, along each axis."""
    axes = np.unravel_index(indices, shape) if shape else ()
    return tuple((int(axis.min()), int(axis.max()) + 1) for axis in axes)


def _race(
    thread: Thread,
    later: _Event,
    earlier: _Event,
    index: tuple[tuple[int, int], ...],
) -> Finding:
    points = [", ".join(map(str, each.program)) for each in (earlier, later)]
    message = (
        f"race on {later.name}: programs ({points[0]}) and ({points[1]}) run at the same time "
        f"on a GPU, and nothing orders two accesses ({_TPU})"
    )
    return Finding(
        kind="race",
        message=message,
        kernel=thread.kernel,
        program=later.program,
        line=later.line,
        ref=later.name,
        accesses=tuple(
            _access(each, replace(thread.owner, thread=""), index) for each in (later, earlier)
        ),
        seed=thread.machine.seed,
    )


def _access(event: _Event, owner: Owner, index: tuple[tuple[int, int], ...]) -> Access:
    return Access(
        kind="read" if event.kind in ("read", "volatile") else "write",
        ref=event.name,
        owner=owner,
        index=index,
        line=event.line,
        program=event.program,
        clock=event.time,
    )
