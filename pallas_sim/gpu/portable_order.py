"""The order among the programs of a grid on a GPU: races, and programs that wait for each other.

The programs of a grid run at the same time and in any order. So two of them must not access an
element that one of them writes, unless atomics order them. An atomic whose result is used learns
what the programs knew that accessed the same element atomically before (Triton's atomics are
``acq_rel`` at the scope of the GPU). Each element has the last accesses of each kind, as in
FastTrack (Flanagan and Freund, PLDI 2009): numbers of events in arrays, so that an access costs a
few operations of numpy, whatever happened before. An element that several programs read, or access
atomically, keeps two of these.

Programs may also wait for each other, by looking at memory in a loop (``may_wait``). Then they run
at the same time, as many as the chip has room for. A program waits if it looks, sees what it saw
before, and changed nothing in between. It goes on once another program changes that memory
(``WaitingPrograms``). So a loop that waits costs no time, and a deadlock is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pallas_sim.chips import GPUS
from pallas_sim.compat.jaxprs import equations, open_jaxpr, sub_jaxprs
from pallas_sim.cores import run_concurrently
from pallas_sim.dtypes import Array
from pallas_sim.findings import Access, Finding, Owner, Wait
from pallas_sim.gpu.launch_order import RACES_WITH, GlobalAccessKind
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Ref
from pallas_sim.scheduler import Task

#: Bytes of the clocks that atomics leave at the elements that they access.
_CLOCK_BYTES = 1 << 26

#: Why the same kernel is right on a TPU, and what to do.
_TPU = "a TPU would allow it, where the grid is a loop: let one program loop, or use atomics"


class ElementSelection(Protocol):
    """The elements that an access touches in an array, or in another one of that shape."""

    def get(self, array: Array) -> Array:
        """Return their values."""
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
    kind: GlobalAccessKind
    name: str
    line: str
    time: int


@dataclass(eq=False)
class GridOrder:
    """The order of the accesses of one grid, as far as it is known.

    Attributes:
      programs: how many there are.
      events: so far; their numbers count from 1, and 0 stands for none.
    """

    programs: int
    events: list[_Event] = field(default_factory=list[_Event])
    _numbers: dict[Any, int] = field(default_factory=dict)
    _program: Array = field(default_factory=lambda: np.full(64, -1, np.int32))
    _time: Array = field(default_factory=lambda: np.zeros(64, np.int32))
    _left: dict[Any, Array] = field(default_factory=dict)
    _reported: set[Any] = field(default_factory=set)

    def event(self, me: GridProgram, kind: GlobalAccessKind, name: str, line: str) -> int:
        """Return the number of an event, the same for accesses that are ordered alike."""
        key = (me.number, kind, name, line, me.time)
        if key in self._numbers:
            return self._numbers[key]
        # An event stands for all accesses of a line until the program synchronizes. So there are as
        # many events as lines and programs, and not as accesses.
        self.events.append(_Event(me.point, kind, name, line, me.time))
        number = self._numbers[key] = len(self.events)
        if number == len(self._program):
            self._program = np.concatenate([self._program, np.full(number, -1, np.int32)])
            self._time = np.concatenate([self._time, np.zeros(number, np.int32)])
        self._program[number], self._time[number] = me.number, me.time
        return number

    def unordered(self, me: GridProgram, events: Array) -> Array | None:
        """Mark the earlier events of other programs that nothing orders before ``me``.

        None if there is none.
        """
        if not events.size:
            return None
        first = int(events.flat[0])
        # Mostly the same line accessed all elements of a block last. Then one comparison is enough.
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
        """Mark the events of the same program as another one."""
        return self._program[events] == self._program[event]

    def synchronize(self, me: GridProgram, elements: Any, *, learns: bool) -> None:
        """Leave the knowledge of ``me`` at elements that it accesses atomically.

        Args:
          me: the program.
          elements: a key of these elements.
          learns: whether it uses their old values, and so learns what others left there.
        """
        most = max(64, _CLOCK_BYTES // (4 * max(self.programs, 1)))
        if elements not in self._left and len(self._left) >= most:
            # Elements share clocks then, which may order too much: at worst a race is missed.
            elements = hash(elements) % most
        left = self._left.get(elements)
        if learns and left is not None:
            me.known = left.copy() if me.known is None else np.maximum(me.known, left)
        known = np.zeros(self.programs, np.int32) if me.known is None else me.known
        left = known.copy() if left is None else np.maximum(left, known)
        left[me.number] = me.time
        self._left[elements] = left
        me.time += 1

    def is_new(self, key: Any) -> bool:
        """Return whether a key is new, and note it as reported."""
        new = key not in self._reported
        self._reported.add(key)
        return new


@dataclass(eq=False)
class Shadow:
    """The last accesses to each element of an array, as numbers of events.

    Attributes:
      order: of the grid.
      shape: of the array.
      kept: which elements reach something, of an output that the kernel only writes; None for all.
    """

    order: GridOrder
    shape: tuple[int, ...]
    kept: Array | None = None
    _last: dict[tuple[GlobalAccessKind, int], Array] = field(default_factory=dict)

    def note(
        self,
        thread: Thread,
        me: GridProgram,
        kind: GlobalAccessKind,
        where: ElementSelection,
        at: tuple[str, str],
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
        for (other, _), last in self._last.items():
            if other not in RACES_WITH[kind]:
                continue
            events = where.get(last)
            wrong = self.order.unordered(me, events)
            if wrong is not None and self.kept is not None:
                wrong &= where.get(self.kept)
            if wrong is not None and wrong.any():
                self._report(thread, number, where, events, wrong)
        self._keep(me, kind, where, number)

    def last(self, kind: GlobalAccessKind) -> tuple[Array | None, Callable[[int], Access]]:
        """Return the last accesses of a kind, as numbers or 0, and the access of a number."""

        def access(number: int) -> Access:
            return _access(self.order.events[number - 1], Owner(), ())

        return self._last.get((kind, 0)), access

    def _keep(
        self, me: GridProgram, kind: GlobalAccessKind, where: ElementSelection, number: int
    ) -> None:
        first = self._of(kind, 0)
        if kind == "write":
            where.put(first, number)
            return
        # The first event stays where it is another program's and nothing orders it before this one:
        # an access of a third program has to be compared with both.
        events = where.get(first)
        kept = self.order.unordered(me, events)
        if kept is None:
            where.put(first, number)
            return
        where.put(first, np.where(kept, events, number))
        second = self._of(kind, 1)
        where.put(second, np.where(kept, number, where.get(second)))

    def _of(self, kind: GlobalAccessKind, which: int) -> Array:
        if (kind, which) not in self._last:
            self._last[kind, which] = np.zeros(self.shape, np.int32)
        return self._last[kind, which]

    def _report(
        self, thread: Thread, number: int, where: ElementSelection, events: Array, wrong: Array
    ) -> None:
        order = self.order
        first_wrong = int(events[wrong].flat[0])
        earlier, later = order.events[first_wrong - 1], order.events[number - 1]
        # Once for each pair of lines, not for each element and each pair of programs.
        key = (later.line, later.kind, earlier.line, earlier.kind, later.name, earlier.name)
        if not order.is_new(key):
            return
        same = wrong & order.same_program(events, first_wrong)
        numbers = where.get(np.arange(int(np.prod(self.shape))).reshape(self.shape))[same]
        axes = np.unravel_index(numbers, self.shape) if self.shape else ()
        box = tuple((int(axis.min()), int(axis.max()) + 1) for axis in axes)
        first, second = (", ".join(map(str, event.program)) for event in (earlier, later))
        message = (
            f"race on {later.name}: programs ({first}) and ({second}) run at the same time "
            f"on a GPU, and nothing orders two accesses ({_TPU})"
        )
        owner = replace(thread.owner, thread="")
        finding = Finding(
            kind="race",
            message=message,
            kernel=thread.kernel,
            program=later.program,
            line=later.line,
            ref=later.name,
            accesses=tuple(_access(event, owner, box) for event in (later, earlier)),
            seed=thread.machine.seed,
        )
        thread.machine.report(finding)


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


@dataclass(eq=False)
class SharedArray:
    """An array that the programs of a grid share.

    Attributes:
      array: its elements, row by row.
      shadow: the last accesses to each of them; None if no program writes it.
      waiting: the programs that wait for a change.
    """

    array: Array
    shadow: Shadow | None = None
    waiting: list[Task] = field(default_factory=list[Task])
    _indices: Array | None = None

    @property
    def indices(self) -> Array:
        """The number of each element."""
        indices = self._indices
        if indices is None:
            indices = self._indices = np.arange(self.array.size).reshape(self.array.shape)
        return indices


# Programs that wait for each other by looking at memory.


#: How often all programs look again before it is a deadlock.
_ROUNDS = 1_000

#: Threads and blocks of threads that a multiprocessor can have ("Technical Specifications per
#: Compute Capability" in the CUDA C++ Programming Guide).
_THREADS = 2048
_RESIDENT = 32

#: Warps of a program that does not choose a number (``pallas_call_registration.py``).
_WARPS = 4

#: Programs with their grid points, in the order in which they begin.
Programs = Iterator[tuple[GridProgram, tuple[int, ...]]]


def may_wait(kernel: Any) -> bool:
    """Return whether programs of a kernel may wait for each other, by looking at memory in a loop.

    Args:
      kernel: the equation of a ``pallas_call``.
    """
    return _looks([kernel.params["jaxpr"]], inside=False)


def communicates(kernel: Any) -> bool:
    """Return whether programs of a kernel learn of each other, or add to the same memory.

    Args:
      kernel: as of ``may_wait``.
    """
    inside = equations(kernel.params["jaxpr"])
    return _looks([kernel.params["jaxpr"]], inside=True) or any(
        eqn.primitive.name == "addupdate" for eqn in inside
    )


def _looks(jaxprs: Iterable[Any], *, inside: bool) -> bool:
    for jaxpr in jaxprs:
        for eqn in open_jaxpr(jaxpr)[0].eqns:
            name = eqn.primitive.name
            if inside and name in ("atomic_rmw", "atomic_cas"):
                return True
            if inside and name == "masked_load" and eqn.params.get("is_volatile"):
                return True
            if _looks(sub_jaxprs(eqn), inside=inside or name == "while"):
                return True
    return False


@dataclass(eq=False)
class WaitingPrograms:
    """The programs of one grid that wait.

    Attributes:
      machine: the run.
      awaited: the memory that they wait for.
      rounds: how often all of them have looked again since something changed.
    """

    machine: Machine
    awaited: list[SharedArray] = field(default_factory=list[SharedArray])
    rounds: int = 0

    def run(
        self,
        thread: Thread,
        programs: Programs,
        work: Callable[[Thread, Programs], None],
        warps: int | None,
    ) -> None:
        """Run programs at the same time, as many as the chip can have.

        Args:
          thread: the device.
          programs: in the order in which they begin.
          work: runs programs one after the other.
          warps: of a program, or None for the default.
        """
        # Programs that the chip has no room for begin when others end. If all programs wait for one
        # that has not begun, the chip hangs, and here it is a deadlock.
        all_programs = list(programs)
        per_core = min(_RESIDENT, _THREADS // (32 * (warps or _WARPS)))
        at_once = min(len(all_programs), per_core * GPUS[self.machine.target].cores)
        shared = iter(all_programs)
        scheduler = self.machine.scheduler
        scheduler.idle.append(self.look_again)
        try:
            if not scheduler.choices.explores:
                cores = [thread.child(thread.owner) for _ in range(at_once)]
                scheduler.run(cores, lambda core: work(core, shared))
                return
            # Each program is an actor, and has a name of its own.
            owners = (f"program {program.number}" for program, _ in all_programs)
            cores = [thread.child(replace(thread.owner, thread=owner)) for owner in owners]
            first = cores[0].number
            run_concurrently(
                thread, cores, lambda core: work(core, iter([all_programs[core.number - first]]))
            )
        finally:
            scheduler.idle.remove(self.look_again)

    def changed(self, memory: SharedArray) -> None:
        """Let programs that wait for some memory look again, because one has changed it."""
        self.rounds = 0
        self._wake(memory)
        self.machine.choices.act()
        if not self.machine.choices.explores:  # there, a program stops before it looks
            self.machine.scheduler.pause()

    def _wake(self, memory: SharedArray) -> None:
        for task in memory.waiting:
            self.machine.scheduler.wake(task)
        memory.waiting.clear()

    def looked(self, thread: Thread, ref: Ref, seen: tuple[str, bytes, bytes]) -> None:
        """Let a program wait that saw in memory what it saw there before, and changed nothing.

        It looks again when nobody else can go on. So this is one order of those that are possible;
        where every order is explored, the rounds of a loop say whether it waits.

        Args:
          thread: that runs it.
          ref: of the memory.
          seen: ``file:line``, the elements that it looked at, and their values.
        """
        program: GridProgram = ref.block.program
        before, program.last = program.last, seen
        scheduler = self.machine.scheduler
        task = scheduler.current
        if scheduler.choices.explores:
            return
        # A program that sees something new goes on: it may be in no loop at all.
        if before != seen or task is None:
            scheduler.pause()
            return
        ref.block.memory.waiting.append(task)
        self.awaited.append(ref.block.memory)
        wait = Wait(owner=thread.owner, on=ref.name, line=seen[0], program=program.point)
        scheduler.block(lambda: wait)

    def look_again(self) -> bool:
        """Let all programs that wait go on; False if they did so too often."""
        awaited, self.awaited = self.awaited, []
        if not any(memory.waiting for memory in awaited) or self.rounds >= _ROUNDS:
            return False
        self.rounds += 1
        for memory in awaited:
            self._wake(memory)
        return True
