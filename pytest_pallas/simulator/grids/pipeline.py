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
from typing import Any

import numpy as np

from pytest_pallas.simulator.concurrency.launches import at_entry, launched, run_divided
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.grids.arguments import arguments_of, output_arrays, scalar_refs
from pytest_pallas.simulator.grids.blocks import (
    BlockBuffer,
    CoreRun,
    enter,
    fetch,
    is_shared,
    store,
)
from pytest_pallas.simulator.grids.kernels import BlockStart, PreparedKernel
from pytest_pallas.simulator.grids.overlaps import (
    report_overwritten,
    watch_shared_blocks,
)
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.accesses import record_access
from pytest_pallas.simulator.memory.allocation import allocate, free
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.monitors.accesses import root
from pytest_pallas.simulator.thread import GridPosition, Thread

Array = np.ndarray[Any, Any]


def execute(kernel: PreparedKernel, thread: Thread, operands: Sequence[Any]) -> list[Array]:
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
    given = arguments_of(kernel, operands)
    inputs = given.inputs
    outputs = _outputs(kernel, machine, inputs)
    body_sizes = tuple(size for axis, size in enumerate(given.grid) if axis not in facts.vmapped)

    def work(core: Thread, points: Iterator[tuple[int, ...]]) -> None:
        # Prefetched scalars, windows and scratch are each core's own.
        buffers = [BlockBuffer(array) for array in (*inputs, *outputs)]
        scalars = scalar_refs(kernel, given.scalars)
        this = CoreRun(kernel, core, given.captured, scalars, buffers)
        core.grids.append(GridPosition((0,) * len(body_sizes), body_sizes))
        outside = core.axes
        try:
            scratch = [
                allocate(core, aval, name, "scratch", number)
                for number, (name, aval) in enumerate(facts.scratch)
            ]
            watch_shared_blocks(this)
            _programs(this, points, scratch)
            report_overwritten(this)
            free(core, scratch, kernel.line)
        finally:
            core.grids.pop()
            core.axes = outside

    divisions = list(divided(given.grid, kernel.parallel, machine.seed, machine.cores))
    several = len(divisions) > 1
    with (
        thread.inside(kernel.name),
        launched(thread, kernel.equation, kernel.traffic, several=several),
    ):
        run_divided(thread, divisions, work)
        for window, array in zip(kernel.windows, (*inputs, *outputs), strict=True):
            lasts = kernel.traffic.lasting or array.dtype == object
            if thread.recorded and window.in_place and not lasts:
                record_access(thread, array, "pass on", window.facts.name, kernel.line)
    return outputs


def _programs(this: CoreRun, points: Iterator[tuple[int, ...]], scratch: list[Ref]) -> None:
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
                store(this, window, buffer)
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


def _starts(this: CoreRun, point: tuple[int, ...]) -> list[BlockStart]:
    return [window.start(this.thread, point, this.scalars) for window in this.kernel.windows]


def _outputs(kernel: PreparedKernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """Memory for the outputs; an aliased one is a copy of its input, unless kernels share that."""
    outputs = output_arrays(
        kernel, machine, inputs, lambda each: each if is_shared(machine, each) else np.array(each)
    )
    if kernel.traffic.lasting:
        # Copies that it starts go on after it: a later kernel waits for them.
        machine.shared |= {id(root(array)): array for array in (*inputs, *outputs)}
    return outputs
