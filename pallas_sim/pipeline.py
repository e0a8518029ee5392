"""The grid of a ``pallas_call``: which block is fetched, computed and written back when.

The order is that of JAX's own pipeline for TPUs (``emit_pipeline``, in
``jax/_src/pallas/mosaic/pipeline.py``): the blocks of step i + 1 are fetched before the body of
step i runs, where an operand has two buffers, and a block of an output is written back once the
next step has another one. An output's window is not loaded: it holds uninitialized memory, until
the body writes it, unless the operand has ``RevisitMode.ANY``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallas_sim.accesses import allocate, free, record_access
from pallas_sim.chips import cores_of
from pallas_sim.choices import Choices
from pallas_sim.cores import at_entry, launched, run_divided
from pallas_sim.coverage import Point
from pallas_sim.dtypes import Array
from pallas_sim.edges import report
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import run
from pallas_sim.findings import Access, Finding
from pallas_sim.liveness import note_unused
from pallas_sim.machine import GridPosition, Machine, Thread
from pallas_sim.memory import Ref
from pallas_sim.order.accesses import root
from pallas_sim.pallas_calls import (
    BlockStart,
    BlockWindow,
    PreparedKernel,
    arguments_of,
    output_arrays,
    scalar_refs,
)


def execute(kernel: PreparedKernel, thread: Thread, operands: Sequence[Any]) -> list[Array]:
    """Run every program of a kernel's grid.

    Args:
      kernel: the kernel.
      thread: the core that runs it.
      operands: captured references, sizes of dynamic dimensions, prefetched scalars, inputs.

    Returns:
      The outputs, as whole arrays.

    Raises:
      SimulationError: the body cannot be evaluated.
    """
    facts, machine = kernel.facts, thread.machine
    arguments = arguments_of(kernel, machine, operands)
    machine.require_programs(arguments.grid)
    inputs = _inputs(kernel, thread, arguments.inputs)
    outputs = _outputs(kernel, machine, inputs)
    note_unused(machine, kernel.equation, outputs, kernel.only_written)
    body_sizes = tuple(
        size for axis, size in enumerate(arguments.grid) if axis not in facts.vmapped
    )

    def work(core: Thread, points: Iterator[tuple[int, ...]]) -> None:
        # Prefetched scalars, windows and scratch are each core's own.
        buffers = [BlockBuffer(array) for array in (*inputs, *outputs)]
        scalars = scalar_refs(kernel, arguments.scalars)
        this = CoreRun(kernel, core, arguments.captured, scalars, buffers)
        core.grids.append(GridPosition((0,) * len(body_sizes), body_sizes))
        outside = core.axes
        try:
            scratch = [
                allocate(core, aval, name, "scratch", number)
                for number, (name, aval) in enumerate(facts.scratch)
            ]
            watch_shared_blocks(this)
            _programs(this, points, scratch)
            _count_blocks(this)
            report_overwritten(this)  # after the last program: steps know their programs by then
            free(core, scratch, kernel.line)
        finally:
            core.grids.pop()
            core.axes = outside

    _require_cores(kernel, arguments.grid, machine)
    divisions = list(divided(arguments.grid, kernel.parallel, machine.choices, machine.cores))
    several = len(divisions) > 1
    with (
        thread.inside(kernel.name, kernel.equation, body_sizes),
        launched(thread, kernel.equation, kernel.traffic, several=several),
    ):
        parallel = any(arguments.grid[axis] > 1 for axis in kernel.parallel)
        thread.in_turns = parallel and machine.cores == 1
        run_divided(thread, divisions, work)
        for window, array in zip(kernel.windows, (*inputs, *outputs), strict=True):
            lasts = kernel.traffic.lasting or array.dtype == object
            if thread.recorded and window.in_place and not lasts:
                record_access(thread, array, "pass on", window.facts.name, kernel.line)
    thread.in_turns = False
    return outputs


def _require_cores(kernel: PreparedKernel, grid: tuple[int, ...], machine: Machine) -> None:
    """Reject a dimension that names more cores than a device has, as the TPU's compiler does."""
    for axis in kernel.core_parallel:
        if grid[axis] > machine.cores:
            raise SimulationError(
                f"the TPU's compiler refuses dimension {axis} of the grid, which is core-parallel "
                f"and has {grid[axis]} programs, more than there are TensorCores: "
                f"{cores_of(machine.target)}"
            )


def _programs(this: CoreRun, points: Iterator[tuple[int, ...]], scratch: list[Ref]) -> None:
    """Run the programs of a core one after the other, with the blocks that each needs."""
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
            enter(this, window, buffer, start)
        if first:
            first = False
            at_entry(thread, kernel.traffic)
        following = next(points, None)
        # Index maps of the next step run before this step's body, as its fetches do.
        next_starts = None if following is None else _starts(this, following)
        if next_starts is not None and thread.machine.ahead:
            for (window, buffer), start in zip(windows, next_starts, strict=True):
                if window.ahead and window.loaded and not window.in_place and start != buffer.start:
                    buffer.fetched = (start, fetch(this, window, buffer, start, ahead=1))
        refs = [buffer.ref for _, buffer in windows]
        with thread.span("body") as span:
            run(kernel.body, thread, [*this.captured, *this.scalars, *refs, *scratch])
            if span is not None:
                span.facts["blocks"] = {
                    window.facts.name: list(start)
                    for window, start in zip(kernel.windows, starts, strict=True)
                }
        for number, (window, buffer) in enumerate(windows):
            changes = next_starts is None or next_starts[number] != buffer.start
            if window.output and changes and not window.in_place:
                store(this, window, buffer)
        point, starts = following, next_starts or []


def _count_blocks(this: CoreRun) -> None:
    """Add what the windows of a core had to the coverage."""
    kernel, coverage = this.kernel, this.thread.machine.coverage
    for window, buffer in zip(kernel.windows, this.buffers, strict=True):
        at = kernel.line, kernel.name, window.facts.name
        if any(buffer.blocks):
            coverage.note(Point("block", *at), *buffer.blocks)
        if window.output and not window.in_place:
            coverage.note(Point("revisit", *at), *buffer.visits)


def divided(
    grid: tuple[int, ...], parallel: Sequence[int], choices: Choices, cores: int
) -> Iterator[Iterator[tuple[int, ...]]]:
    """Yield the grid points of each core, in the order in which they run.

    Args:
      grid: sizes of the dimensions.
      parallel: dimensions whose programs may run in any order, and on any core.
      choices: that order.
      cores: how many there are. The first parallel dimension with more than one program is divided.
    """
    ranges: list[Sequence[int]] = [range(size) for size in grid]
    axis = next((axis for axis in parallel if grid[axis] > 1), None)
    orders = choices.orders([grid[dim] for dim in parallel])
    for dim, order in zip(parallel, orders, strict=True):
        ranges[dim] = order
    if cores == 1 or axis is None:
        yield itertools.product(*ranges)
        return
    whole, share = ranges[axis], -(-grid[axis] // cores)
    for first in range(0, grid[axis], share):
        ranges[axis] = whole[first : first + share]
        yield itertools.product(*ranges)


def _starts(this: CoreRun, point: tuple[int, ...]) -> list[BlockStart]:
    return [window.start(this.thread, point, this.scalars) for window in this.kernel.windows]


def _inputs(kernel: PreparedKernel, thread: Thread, values: Sequence[Array]) -> list[Array]:
    """Return the memory of the inputs: the device's own where something writes it in place."""
    first = kernel.captured + len(kernel.facts.scalars)

    def memory_of(window: BlockWindow, value: Array) -> Array:
        if is_shared(thread.machine, value):
            return value
        # What copies in flight access after the kernel is no other device's, either.
        written = window.in_place and first + window.number in kernel.written
        changes = window.is_input_of(kernel) and (written or kernel.traffic.lasting)
        return thread.device.memory_of(value, writes=changes)

    return [memory_of(*pair) for pair in zip(kernel.windows, values, strict=False)]


def _outputs(kernel: PreparedKernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """Return memory for the outputs; an aliased one copies its input, unless kernels share it."""
    outputs = output_arrays(
        kernel,
        machine,
        inputs,
        lambda array: array if is_shared(machine, array) else np.array(array),
    )
    if kernel.traffic.lasting:
        # Copies that it starts go on after it: a later kernel waits for them.
        machine.shared |= {id(root(array)): array for array in (*inputs, *outputs)}
    return outputs


# Blocks that programs of a core access: copies that are fetched and written back, or views.


@dataclass(eq=False)
class BlockBuffer:
    """What a window holds while the grid runs.

    Attributes:
      array: of the whole operand.
      start: of the block that the body sees.
      ref: of the body; None before the first block.
      fetched: the block of the next step, if it was fetched ahead.
      left: the blocks that were written back.
      blocks: how many that were moved are whole, and have an overhang.
      visits: how many programs had a block first, and again.
      overlaps: of memory that an input shares with an output; both have it.
    """

    array: Array
    start: BlockStart | None = None
    ref: Ref | None = None
    fetched: tuple[BlockStart, Array] | None = None
    left: set[BlockStart] = field(default_factory=set)
    blocks: list[int] = field(default_factory=lambda: [0, 0])
    visits: list[int] = field(default_factory=lambda: [0, 0])
    overlaps: Overlaps | None = None


@dataclass(eq=False)
class CoreRun:
    """One execution of a kernel.

    Attributes:
      kernel: what is executed.
      thread: by whom.
      captured: the references from outside.
      scalars: the prefetched operands.
      buffers: of its windows.
      points: the programs that it has come to, in order.
    """

    kernel: PreparedKernel
    thread: Thread
    captured: Sequence[Ref]
    scalars: list[Ref]
    buffers: list[BlockBuffer] = field(default_factory=list)
    points: list[tuple[int, ...]] = field(default_factory=list)


def is_shared(machine: Machine, array: Array) -> bool:
    """Return whether kernels share an array: copies in flight write to it, so it must stay."""
    return bool(machine.shared) and id(root(array)) in machine.shared


def enter(this: CoreRun, window: BlockWindow, buffer: BlockBuffer, start: BlockStart) -> None:
    """Give the body the block that begins at ``start``."""
    again = buffer.start == start and buffer.ref is not None
    buffer.visits[again or start in buffer.left] += 1
    if again:
        return
    name = this.kernel.names[len(this.scalars) + window.number]
    machine = this.thread.machine
    if window.in_place:
        data = _view(this, window, buffer.array, start)
    elif window.sizes == buffer.array.shape and is_shared(machine, buffer.array):
        data = buffer.array.reshape(window.shape)
    elif not window.loaded:
        _locate(this, window, buffer.array, start)  # which reports a block beyond the edge
        data = machine.uninitialized(window.shape, buffer.array.dtype, "output")
    elif buffer.fetched is not None and buffer.fetched[0] == start:
        data = buffer.fetched[1]
    else:
        data = fetch(this, window, buffer, start)
    buffer.fetched = None
    buffer.start = start
    left = not window.loaded and start in buffer.left
    buffer.ref = Ref(data, name, window.home, is_input=window.is_input_of(this.kernel), left=left)
    if this.thread.recorded:
        this.thread.publish(buffer.ref, "operand", window.number, shared=window.in_place)


def _locate(
    this: CoreRun, window: BlockWindow, array: Array, start: BlockStart
) -> list[tuple[slice, slice]]:
    """Return for each axis which part of the block is inside of the array, and where it is there.

    A block that begins beyond an edge of the array is reported.
    """
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        low, high = window.facts.dims[axis][2]
        if size and (first < -low or first >= dim + high) and array.size:
            _report_beyond(this, window, array, start, axis)
            break
    return _clipped(window, array, start)


def _clipped(window: BlockWindow, array: Array, start: BlockStart) -> list[tuple[slice, slice]]:
    """Return for each axis the part of the array that a block has, and where it is in the block."""
    parts: list[tuple[slice, slice]] = []
    for first, size, dim in zip(start, window.sizes, array.shape, strict=True):
        begin = max(first, 0)
        end = max(begin, min(first + size, dim), 0)
        parts.append((slice(begin, end), slice(begin - first, end - first)))
    return parts


def fetch(
    this: CoreRun, window: BlockWindow, buffer: BlockBuffer, start: BlockStart, *, ahead: int = 0
) -> Array:
    """Return a copy of a block; what of it is beyond the edge is uninitialized.

    It is for the program that is so many steps ahead.
    """
    array = buffer.array
    parts = _locate(this, window, array, start)
    inside = array[(*(source for source, _ in parts), ...)]
    buffer.blocks[inside.shape != window.sizes] += 1
    if buffer.overlaps is not None:
        buffer.overlaps.fetch([source for source, _ in parts], len(this.points) - 1 + ahead)
    _record(this, inside, "read", window)
    if inside.shape == window.sizes:
        block = np.array(inside)
    else:
        block = this.thread.machine.uninitialized(window.sizes, array.dtype, "padding")
        block[tuple(target for _, target in parts)] = inside
    return block.reshape(window.shape)


def _record(
    this: CoreRun, part: Array, kind: Literal["read", "write"], window: BlockWindow
) -> None:
    if this.thread.recorded:
        record_access(this.thread, part, kind, window.facts.name, this.kernel.line)


def store(this: CoreRun, window: BlockWindow, buffer: BlockBuffer) -> None:
    """Write a block back, as far as it is inside of the array."""
    assert buffer.ref is not None
    assert buffer.start is not None
    block = buffer.ref.data.reshape(window.sizes)
    if np.may_share_memory(block, buffer.array):
        return  # the window is the array
    parts = _clipped(window, buffer.array, buffer.start)
    targets = [target for target, _ in parts]
    part = buffer.array[(*targets, ...)]
    buffer.left.add(buffer.start)
    if buffer.overlaps is not None:
        buffer.overlaps.store(targets, len(this.points) - 1)
    _record(this, part, "write", window)
    buffer.blocks[part.shape != window.sizes] += 1
    part[...] = block[tuple(source for _, source in parts)]


def _view(this: CoreRun, window: BlockWindow, array: Array, start: BlockStart) -> Array:
    """Return a block of an array that the body accesses in place."""
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        if first < 0 or first + size > dim:
            _report_beyond(this, window, array, start, axis)
            # A copy: what the body writes there is lost.
            parts = _clipped(window, array, start)
            block = this.thread.machine.uninitialized(window.sizes, array.dtype, "padding")
            block[tuple(b for _, b in parts)] = array[tuple(a for a, _ in parts)]
            return block.reshape(window.shape)
    key = tuple(
        first if axis in window.squeezed else slice(first, first + size)
        for axis, (first, size) in enumerate(zip(start, window.sizes, strict=True))
    )
    return array[(*key, ...)]


def _report_beyond(
    this: CoreRun, window: BlockWindow, array: Array, start: BlockStart, axis: int
) -> None:
    block = [size for _, size, _ in window.facts.dims]
    message = (
        f"the index map of {window.facts.name} gives a block {block} that begins at "
        f"{list(start)}, beyond the edge of axis {axis} of its array {list(array.shape)}"
    )
    facts: dict[str, Any] = {"ref": window.facts.name, "index": start, "shape": tuple(array.shape)}
    report(this.thread, this.thread.finding("bounds", message, this.kernel.line, **facts))


# The monitor of shared blocks: which are fetched for a program after another overwrote them.
#
# An input that shares the memory of an output is fetched block by block, and the output is written
# back so. If a block is fetched for a program that comes after one that wrote it back, a chip reads
# the old contents or the new ones, as far as it fetches ahead. With two buffers each, the block of
# step s arrives in memory while step s + 1 runs, and that of step r is fetched while step r - 1
# runs: from s + 3 on, a step reads what s wrote.


#: Where a block is in its array.
Box = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A block that is read after it was overwritten.

    Attributes:
      box: the elements that were written and are read.
      writer: the step that overwrote them, in the order in which a core runs its programs.
      reader: the step that they are fetched for.
    """

    box: Box
    writer: int
    reader: int


@dataclass(eq=False)
class Overlaps:
    """What a core fetched from memory that it also writes back to, element by element.

    Attributes:
      shape: of the memory.
      reach: so many steps after the last one that has a block of the output, a fetch of it may
        still come too early.
      first: the first overlap, or None.
    """

    shape: tuple[int, ...]
    reach: int
    first: Overlap | None = None
    _fetched: Array = field(init=False)
    _stored: Array = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is fetched or stored yet."""
        self._fetched = np.full(self.shape, -1, np.int64)
        self._stored = np.full(self.shape, -1, np.int64)

    def fetch(self, box: Sequence[slice], step: int) -> None:
        """Note that a block is fetched for a step."""
        part = self._stored[tuple(box)]
        early = (part >= 0) & (part < step) & (part >= step - self.reach)
        self._note(box, early, part, writer=None, reader=step)
        self._fetched[tuple(box)] = step

    def store(self, box: Sequence[slice], step: int) -> None:
        """Note that a step writes a block back. Blocks of later steps may have been fetched."""
        part = self._fetched[tuple(box)]
        self._note(box, part > step, part, writer=step, reader=None)
        self._stored[tuple(box)] = step

    def _note(
        self,
        box: Sequence[slice],
        wrong: Array,
        steps: Array,
        writer: int | None,
        reader: int | None,
    ) -> None:
        """Keep the first overlap; the writer or the reader, whichever is None, is in ``steps``."""
        if self.first is not None or not wrong.any():
            return
        where = np.argwhere(wrong)
        low, high = where.min(axis=0), where.max(axis=0) + 1
        inside = tuple(
            slice(span.start + int(a), span.start + int(b))
            for span, a, b in zip(box, low, high, strict=True)
        )
        other = int(steps[tuple(where[0])])
        self.first = Overlap(
            inside,
            other if writer is None else writer,
            other if reader is None else reader,
        )


def _shared_windows(kernel: PreparedKernel) -> Iterator[tuple[BlockWindow, BlockWindow]]:
    """Yield the inputs that are fetched, with the outputs that are written to the same memory."""
    outputs = [window for window in kernel.windows if window.output]
    for position, number in kernel.facts.aliases:
        source, target = kernel.windows[position], outputs[number]
        if not (source.in_place or target.in_place):
            yield source, target


def watch_shared_blocks(this: CoreRun) -> None:
    """Begin to note the accesses to memory that an input shares with an output."""
    for source, target in _shared_windows(this.kernel):
        fetched, stored = this.buffers[source.number], this.buffers[target.number]
        overlaps = Overlaps(fetched.array.shape, source.facts.lag + target.facts.lag)
        fetched.overlaps = stored.overlaps = overlaps


def report_overwritten(this: CoreRun) -> None:
    """Report blocks that were fetched for a program after another had overwritten them."""
    kernel, thread = this.kernel, this.thread
    for source, target in _shared_windows(kernel):
        overlaps = this.buffers[source.number].overlaps
        if overlaps is None or overlaps.first is None:
            continue
        overlap = overlaps.first
        box = tuple((span.start, span.stop) for span in overlap.box)
        common: dict[str, Any] = {"owner": thread.owner, "index": box}
        writer, reader = this.points[overlap.writer], this.points[overlap.reader]
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
                line=kernel.line,
                ref=source.facts.name,
                shape=tuple(overlaps.shape),
                accesses=(
                    Access(kind="write", ref=target.facts.name, program=writer, **common),
                    Access(kind="read", ref=source.facts.name, program=reader, **common),
                ),
            )
        )
