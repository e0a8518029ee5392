"""The grid of a ``pallas_call``: which block is fetched, computed and written back when.

The order is that of JAX's own pipeline for TPUs (``emit_pipeline``, in
``jax/_src/pallas/mosaic/pipeline.py``): the blocks of step i + 1 are fetched before the body of
step i runs, where an operand has two buffers, and a block of an output is written back once the
next step has another one. An output's window is not loaded: it holds what was never written, until
the body writes it, unless the operand asks for ``RevisitMode.ANY``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pytest_pallas.compat.grids import BlockFacts, GridFacts
from pytest_pallas.compat.source import source_line
from pytest_pallas.errors import BoundsError, SimulationError
from pytest_pallas.findings import Access, Finding
from pytest_pallas.simulator.concurrency.launches import Traffic, at_entry, beside_another, launched
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.machine import Grid, Machine, Thread
from pytest_pallas.simulator.memory.accesses import bounds_error, record_access
from pytest_pallas.simulator.memory.allocation import allocate, free, memory_of
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.monitors.accesses import root
from pytest_pallas.simulator.monitors.overlaps import Overlaps
from pytest_pallas.simulator.program import Program, prepare

Array = np.ndarray[Any, Any]

#: Memory that a body accesses where the array is, not by blocks that are copied.
IN_PLACE = frozenset({"any", "hbm", "host", "semaphore", "semaphore_mem"})

#: The first element of a block along each axis, before its array is padded.
Start = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The blocks of one operand, prepared.

    Attributes:
      number: of the operand: inputs first, then outputs.
      facts: what the call says of them.
      index_map: gives a block's index for a grid point.
      sizes: of a block along each axis of the array.
      scales: elements from one index to the next, along each axis.
      squeezed: the axes that the body does not see.
      shape: of the block that the body sees.
      ahead: whether the next block is fetched while the body runs.
      output: whether it is an output's.
      home: the memory space that the body's reference is in.
    """

    number: int
    facts: BlockFacts
    index_map: Program
    sizes: tuple[int, ...]
    scales: tuple[int, ...]
    squeezed: tuple[int, ...]
    shape: tuple[int, ...]
    ahead: bool
    output: bool
    home: str

    @property
    def in_place(self) -> bool:
        """Whether the body accesses the array itself."""
        return self.facts.space in IN_PLACE

    @property
    def loaded(self) -> bool:
        """Whether a block is fetched before the body sees it."""
        return not self.output or self.facts.any_revisit

    def start(self, thread: Thread, point: Sequence[int], scalars: Sequence[Ref]) -> Start:
        """Where the block of a grid point begins."""
        indices = run(self.index_map, thread, (*map(np.int32, point), *scalars))
        leaves = self.facts.of_dims(indices)
        return tuple(
            int(np.asarray(index)) * scale - pad
            for index, scale, (_, _, (pad, _)) in zip(
                leaves, self.scales, self.facts.dims, strict=True
            )
        )


def window_of(number: int, facts: BlockFacts, *, output: bool, home: str = "") -> Window:
    """The window of an operand.

    Args:
      number: of the operand: inputs first, then outputs.
      facts: what the call says of its blocks.
      output: whether it is an output.
      home: the memory space that its array was asked to be in, or "".

    Raises:
      SimulationError: JAX refuses such blocks too, when it compiles for a TPU.
    """
    if any(kind == "BoundedSlice" for kind, _, _ in facts.dims):
        raise SimulationError(
            f"the blocks of {facts.name} are bounded slices, which only emit_pipeline can fetch"
        )
    sizes = tuple(size for _, size, _ in facts.dims)
    trivial = sizes == facts.shape
    return Window(
        number=number,
        facts=facts,
        index_map=prepare(facts.index_map),
        sizes=sizes,
        scales=tuple(size if kind == "Blocked" else 1 for kind, size, _ in facts.dims),
        squeezed=tuple(axis for axis, (kind, _, _) in enumerate(facts.dims) if kind == "Squeezed"),
        shape=tuple(size for kind, size, _ in facts.dims if kind != "Squeezed"),
        ahead=not trivial and (facts.buffers or 2) > 1,
        output=output,
        home=(home or "hbm") if facts.space == "any" else facts.space,
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A ``pallas_call``, prepared.

    Attributes:
      name: of the kernel.
      facts: what it says of its grid and operands.
      captured: how many references from outside the body uses: its first inputs.
      body: its program.
      names: of the body's parameters.
      windows: of the inputs, then of the outputs.
      written: positions of the body's parameters that it writes.
      parallel: the grid dimensions whose programs may run in any order.
      traffic: what it does beside loads and stores.
      equation: JAX's equation.
    """

    name: str
    facts: GridFacts
    captured: int
    body: Program
    names: tuple[str, ...]
    windows: tuple[Window, ...]
    written: frozenset[int]
    parallel: tuple[int, ...]
    traffic: Traffic
    equation: Any


@dataclass(eq=False)
class _Buffer:
    """What a window holds while the grid runs.

    Attributes:
      array: of the whole operand.
      start: of the block that the body sees.
      ref: of the body; None before the first block.
      fetched: the block of the next step, if it was fetched ahead.
      left: the blocks that were written back.
      overlaps: of memory that an input shares with an output; both have it.
    """

    array: Array
    start: Start | None = None
    ref: Ref | None = None
    fetched: tuple[Start, Array] | None = None
    left: set[Start] = field(default_factory=set)
    overlaps: Overlaps | None = None


@dataclass(eq=False)
class _Run:
    """One execution of a kernel.

    Attributes:
      kernel: what is executed.
      thread: by whom.
      captured: the references from outside.
      scalars: the prefetched operands.
      buffers: of its windows.
      points: the programs that it has come to, in order.
    """

    kernel: Kernel
    thread: Thread
    captured: Sequence[Ref]
    scalars: list[Ref]
    buffers: list[_Buffer] = field(default_factory=list)
    points: list[tuple[int, ...]] = field(default_factory=list)


def execute(kernel: Kernel, thread: Thread, operands: Sequence[Any]) -> list[Array]:
    """Run every program of a kernel's grid.

    Args:
      kernel: the kernel.
      thread: the core that runs it.
      operands: captured references, sizes of dynamic dimensions, prefetched scalars, inputs.

    Returns:
      The outputs, as whole arrays.

    Raises:
      BoundsError: a block or an access is beyond the edge of its array.
      SimulationError: the body cannot be evaluated.
    """
    facts, machine = kernel.facts, thread.machine
    captured, operands = operands[: kernel.captured], operands[kernel.captured :]
    sizes = iter(np.asarray(operands[position]).item() for position in facts.sizes)
    grid = tuple(next(sizes) if size is None else size for size in facts.grid)
    first = len(facts.sizes) + len(facts.scalars)
    inputs = [np.asarray(array) for array in operands[first:]]
    outputs = _outputs(kernel, machine, inputs)
    scalars = [
        Ref(np.array(operands[position]), name, "smem")
        for position, name in zip(facts.scalars, kernel.names, strict=False)
    ]
    body_sizes = tuple(size for axis, size in enumerate(grid) if axis not in facts.vmapped)
    line = source_line(kernel.equation) or ""

    def work(core: Thread, points: Iterator[tuple[int, ...]]) -> None:
        # Prefetched scalars, windows and scratch are each core's own.
        buffers = [_Buffer(array) for array in (*inputs, *outputs)]
        own = [Ref(np.array(each.data), each.name, each.space) for each in scalars]
        this = _Run(kernel, core, captured, own, buffers)
        core.grids.append(Grid((0,) * len(body_sizes), body_sizes))
        outside = core.axes
        try:
            scratch = [
                allocate(core, aval, name, "scratch", number)
                for number, (name, aval) in enumerate(facts.scratch)
            ]
            _watch_shared_blocks(this)
            _programs(this, points, scratch)
            _report_overwritten(this)
            free(core, scratch, line)
        finally:
            core.grids.pop()
            core.axes = outside

    divisions = list(divided(grid, kernel.parallel, machine.seed, machine.cores))
    several = len(divisions) > 1
    with (
        thread.inside(kernel.name),
        launched(thread, kernel.equation, kernel.traffic, several=several),
    ):
        beside_another(thread, divisions, work)
        for window, array in zip(kernel.windows, (*inputs, *outputs), strict=True):
            lasts = kernel.traffic.lasting or array.dtype == object
            if thread.recorded and window.in_place and not lasts:
                record_access(thread, array, "pass on", window.facts.name, line)
    return outputs


def _programs(this: _Run, points: Iterator[tuple[int, ...]], scratch: list[Ref]) -> None:
    """The programs of a core one after the other, with the blocks that each needs."""
    kernel, thread = this.kernel, this.thread
    state = thread.grids[-1]
    vmapped = kernel.facts.vmapped
    windows = list(zip(kernel.windows, this.buffers, strict=True))
    point = next(points, None)
    if point is None:
        return
    starts = _starts(this, point)
    first = True
    while point is not None:
        state.point = tuple(i for axis, i in enumerate(point) if axis not in vmapped)
        this.points.append(state.point)
        if kernel.facts.axes:
            thread.axes = {**thread.axes, **dict(zip(kernel.facts.axes, point, strict=False))}
        for (window, buffer), start in zip(windows, starts, strict=True):
            _enter(this, window, buffer, start)
        if first:
            first = False
            at_entry(thread, kernel.traffic)
        following = next(points, None)
        # Index maps of the next step run before this step's body, as its fetches do.
        next_starts = None if following is None else _starts(this, following)
        if next_starts is not None and thread.machine.ahead:
            for (window, buffer), start in zip(windows, next_starts, strict=True):
                if window.ahead and window.loaded and not window.in_place and start != buffer.start:
                    buffer.fetched = (start, _fetch(this, window, buffer, start, ahead=1))
        refs = [buffer.ref for _, buffer in windows]
        timeline = thread.machine.timeline
        span = None if timeline is None else timeline.body(thread)
        run(kernel.body, thread, [*this.captured, *this.scalars, *refs, *scratch])
        if timeline is not None and span is not None:
            span.facts["blocks"] = {
                window.facts.name: list(start)
                for (window, _), start in zip(windows, starts, strict=True)
            }
            timeline.end(thread, span)
        for number, (window, buffer) in enumerate(windows):
            changes = next_starts is None or next_starts[number] != buffer.start
            if window.output and changes and not window.in_place:
                _store(this, window, buffer)
        point, starts = following, next_starts or []


def divided(
    grid: tuple[int, ...], parallel: Sequence[int], seed: int, cores: int
) -> Iterator[Iterator[tuple[int, ...]]]:
    """The grid points of each core, in the order in which they run.

    Args:
      grid: sizes of the dimensions.
      parallel: dimensions whose programs may run in any order, and on any core.
      seed: of that order; 0 is the plain one, and no other seed's.
      cores: how many there are. The first parallel dimension with more than one program is divided.
    """
    ranges: list[Sequence[int]] = [range(size) for size in grid]
    axis = next((axis for axis in parallel if grid[axis] > 1), None)
    if seed and axis is not None:
        generator = np.random.Generator(np.random.Philox(seed))
        plain = [list(each) for each in ranges]
        while all(list(ranges[each]) == plain[each] for each in parallel):
            for each in parallel:
                ranges[each] = [int(i) for i in generator.permutation(grid[each])]
    if cores == 1 or axis is None:
        yield itertools.product(*ranges)
        return
    whole, share = ranges[axis], -(-grid[axis] // cores)
    for first in range(0, grid[axis], share):
        ranges[axis] = whole[first : first + share]
        yield itertools.product(*ranges)


def _starts(this: _Run, point: tuple[int, ...]) -> list[Start]:
    return [window.start(this.thread, point, this.scalars) for window in this.kernel.windows]


def _outputs(kernel: Kernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """Memory for the outputs; an aliased one is the memory of its input, which is a copy here."""
    facts = kernel.facts
    aliased = {output: position for position, output in facts.aliases}
    outputs: list[Array] = []
    for number, block in enumerate(facts.outputs):
        position = aliased.get(number)
        if position is None:
            memory = memory_of(machine, block.shape, block.dtype, block.name, "output")
            outputs.append(memory)
            continue
        shared = inputs[position]
        if not _is_shared(machine, shared):
            shared = np.array(shared)
        if not (machine.separate and facts.inputs[position].space not in IN_PLACE):
            inputs[position] = shared
        outputs.append(shared)
    if kernel.traffic.lasting:
        # Copies that it starts go on after it: a later kernel waits for them.
        machine.shared |= {id(root(array)): array for array in (*inputs, *outputs)}
    return outputs


def _is_shared(machine: Machine, array: Array) -> bool:
    """Whether kernels share an array: what copies in flight write to must stay where it is."""
    return bool(machine.shared) and id(root(array)) in machine.shared


def _enter(this: _Run, window: Window, buffer: _Buffer, start: Start) -> None:
    """Give the body the block that begins at ``start``."""
    if buffer.start == start and buffer.ref is not None:
        return
    name = this.kernel.names[len(this.scalars) + window.number]
    machine = this.thread.machine
    if window.in_place:
        data = _view(this, window, buffer.array, start)
    elif window.sizes == buffer.array.shape and _is_shared(machine, buffer.array):
        data = buffer.array.reshape(window.shape)
    elif not window.loaded:
        _locate(this, window, buffer.array, start)  # which refuses a block beyond the edge
        data = machine.uninitialized(window.shape, buffer.array.dtype, "output")
    elif buffer.fetched is not None and buffer.fetched[0] == start:
        data = buffer.fetched[1]
    else:
        data = _fetch(this, window, buffer, start)
    buffer.fetched = None
    buffer.start = start
    left = not window.loaded and start in buffer.left
    buffer.ref = Ref(data, name, window.home, input=_is_input(this.kernel, window), left=left)
    if this.thread.recorded:
        this.thread.publish(buffer.ref, "operand", window.number, shared=window.in_place)


def _is_input(kernel: Kernel, window: Window) -> bool:
    """Whether a window is that of an input that shares no memory with an output."""
    if window.output:
        return False
    return all(position != window.number for position, _ in kernel.facts.aliases)


def _locate(this: _Run, window: Window, array: Array, start: Start) -> list[tuple[slice, slice]]:
    """For each axis, which part of the block is inside of the array, and where it is there.

    Raises:
      BoundsError: the block begins beyond an edge of the array.
    """
    found: list[tuple[slice, slice]] = []
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        low, high = window.facts.dims[axis][2]
        if size and (first < -low or first >= dim + high) and array.size:
            raise _beyond(this, window, array, start, axis)
        begin, end = max(first, 0), max(min(first + size, dim), 0)
        end = max(begin, end)
        found.append((slice(begin, end), slice(begin - first, end - first)))
    return found


def _fetch(this: _Run, window: Window, buffer: _Buffer, start: Start, *, ahead: int = 0) -> Array:
    """A copy of a block; what of it is beyond the edge was never written.

    It is for the program that is so many steps ahead.
    """
    array = buffer.array
    parts = _locate(this, window, array, start)
    inside = array[tuple(source for source, _ in parts)]
    if buffer.overlaps is not None:
        buffer.overlaps.fetch([source for source, _ in parts], len(this.points) - 1 + ahead)
    _record(this, inside, "read", window)
    if inside.shape == window.sizes:
        block = np.array(inside)
    else:
        block = this.thread.machine.uninitialized(window.sizes, array.dtype, "padding")
        block[tuple(target for _, target in parts)] = inside
    return block.reshape(window.shape)


def _record(this: _Run, part: Array, kind: Literal["read", "write"], window: Window) -> None:
    if this.thread.recorded:
        line = source_line(this.kernel.equation) or ""
        record_access(this.thread, part, kind, window.facts.name, line)


def _store(this: _Run, window: Window, buffer: _Buffer) -> None:
    """Write a block back, as far as it is inside of the array."""
    assert buffer.ref is not None
    assert buffer.start is not None
    block = buffer.ref.data.reshape(window.sizes)
    if np.may_share_memory(block, buffer.array):
        return  # the window is the array
    sources: list[slice] = []
    targets: list[slice] = []
    for first, size, dim in zip(buffer.start, window.sizes, buffer.array.shape, strict=True):
        begin, end = max(first, 0), max(min(first + size, dim), 0)
        targets.append(slice(begin, max(begin, end)))
        sources.append(slice(begin - first, max(begin, end) - first))
    part = buffer.array[tuple(targets)]
    buffer.left.add(buffer.start)
    if buffer.overlaps is not None:
        buffer.overlaps.store(targets, len(this.points) - 1)
    _record(this, part, "write", window)
    part[...] = block[tuple(sources)]


def _shared_windows(kernel: Kernel) -> Iterator[tuple[Window, Window]]:
    """The inputs that are fetched, and the outputs that are written back to the same memory."""
    outputs = [window for window in kernel.windows if window.output]
    for position, number in kernel.facts.aliases:
        source, target = kernel.windows[position], outputs[number]
        if not (source.in_place or target.in_place):
            yield source, target


def _watch_shared_blocks(this: _Run) -> None:
    for source, target in _shared_windows(this.kernel):
        fetched, stored = this.buffers[source.number], this.buffers[target.number]
        fetched.overlaps = stored.overlaps = Overlaps(fetched.array.shape)


def _report_overwritten(this: _Run) -> None:
    """Report blocks that were fetched for a program after another had overwritten them."""
    kernel, thread = this.kernel, this.thread
    for source, target in _shared_windows(kernel):
        overlaps = this.buffers[source.number].overlaps
        if overlaps is None or overlaps.first is None:
            continue
        found = overlaps.first
        box = tuple((each.start, each.stop) for each in found.box)
        common: dict[str, Any] = {"owner": thread.owner, "index": box}
        writer, reader = this.points[found.writer], this.points[found.reader]
        thread.machine.report(
            Finding(
                kind="overwritten",
                message=(
                    f"a block of the input {source.facts.name} is fetched for a program after "
                    f"another one overwrote it through {target.facts.name}, which shares its "
                    "memory: a chip reads the old contents or the new ones, as far as it fetches "
                    "ahead"
                ),
                kernel=kernel.name,
                program=reader,
                line=source_line(kernel.equation) or "",
                ref=source.facts.name,
                shape=tuple(overlaps.shape),
                accesses=(
                    Access(kind="write", ref=target.facts.name, program=writer, **common),
                    Access(kind="read", ref=source.facts.name, program=reader, **common),
                ),
            )
        )


def _view(this: _Run, window: Window, array: Array, start: Start) -> Array:
    """A block of an array that the body accesses in place."""
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        if first < 0 or first + size > dim:
            raise _beyond(this, window, array, start, axis)
    key = tuple(
        first if axis in window.squeezed else slice(first, first + size)
        for axis, (first, size) in enumerate(zip(start, window.sizes, strict=True))
    )
    return array[key]


def _beyond(this: _Run, window: Window, array: Array, start: Start, axis: int) -> BoundsError:
    kernel, thread = this.kernel, this.thread
    block = [size for _, size, _ in window.facts.dims]
    message = (
        f"the index map of {window.facts.name} gives a block {block} that begins at "
        f"{list(start)}, beyond the edge of axis {axis} of its array {list(array.shape)}"
    )
    line, shape = source_line(kernel.equation) or "", tuple(array.shape)
    return bounds_error(thread, message, line, ref=window.facts.name, index=start, shape=shape)
