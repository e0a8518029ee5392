"""Blocks that programs of a core access: copies that are fetched and written back, or views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pytest_pallas.sim_errors import BoundsError
from pytest_pallas.simulator.grids.kernels import BlockStart, BlockWindow, PreparedKernel
from pytest_pallas.simulator.grids.overlaps import Overlaps
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.accesses import bounds_error, record_access
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.monitors.accesses import root
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class BlockBuffer:
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
    start: BlockStart | None = None
    ref: Ref | None = None
    fetched: tuple[BlockStart, Array] | None = None
    left: set[BlockStart] = field(default_factory=set)
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
    """Whether kernels share an array: what copies in flight write to must stay where it is."""
    return bool(machine.shared) and id(root(array)) in machine.shared


def enter(this: CoreRun, window: BlockWindow, buffer: BlockBuffer, start: BlockStart) -> None:
    """Let the body have the block that begins at ``start``."""
    if buffer.start == start and buffer.ref is not None:
        return
    name = this.kernel.names[len(this.scalars) + window.number]
    machine = this.thread.machine
    if window.in_place:
        data = _view(this, window, buffer.array, start)
    elif window.sizes == buffer.array.shape and is_shared(machine, buffer.array):
        data = buffer.array.reshape(window.shape)
    elif not window.loaded:
        _locate(this, window, buffer.array, start)  # which raises for a block beyond the edge
        data = machine.uninitialized(window.shape, buffer.array.dtype, "output")
    elif buffer.fetched is not None and buffer.fetched[0] == start:
        data = buffer.fetched[1]
    else:
        data = fetch(this, window, buffer, start)
    buffer.fetched = None
    buffer.start = start
    left = not window.loaded and start in buffer.left
    buffer.ref = Ref(data, name, window.home, input=window.is_input_of(this.kernel), left=left)
    if this.thread.recorded:
        this.thread.publish(buffer.ref, "operand", window.number, shared=window.in_place)


def _locate(
    this: CoreRun, window: BlockWindow, array: Array, start: BlockStart
) -> list[tuple[slice, slice]]:
    """For each axis, which part of the block is inside of the array, and where it is there.

    Raises:
      BoundsError: the block begins beyond an edge of the array.
    """
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        low, high = window.facts.dims[axis][2]
        if size and (first < -low or first >= dim + high) and array.size:
            raise _beyond(this, window, array, start, axis)
    return _clipped(window, array, start)


def _clipped(window: BlockWindow, array: Array, start: BlockStart) -> list[tuple[slice, slice]]:
    """For each axis, which part of the array the block has, and where that is in the block."""
    found: list[tuple[slice, slice]] = []
    for first, size, dim in zip(start, window.sizes, array.shape, strict=True):
        begin = max(first, 0)
        end = max(begin, min(first + size, dim), 0)
        found.append((slice(begin, end), slice(begin - first, end - first)))
    return found


def fetch(
    this: CoreRun, window: BlockWindow, buffer: BlockBuffer, start: BlockStart, *, ahead: int = 0
) -> Array:
    """A copy of a block; what of it is beyond the edge is uninitialized.

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
    part = buffer.array[tuple(targets)]
    buffer.left.add(buffer.start)
    if buffer.overlaps is not None:
        buffer.overlaps.store(targets, len(this.points) - 1)
    _record(this, part, "write", window)
    part[...] = block[tuple(source for _, source in parts)]


def _view(this: CoreRun, window: BlockWindow, array: Array, start: BlockStart) -> Array:
    """A block of an array that the body accesses in place."""
    for axis, (first, size, dim) in enumerate(zip(start, window.sizes, array.shape, strict=True)):
        if first < 0 or first + size > dim:
            raise _beyond(this, window, array, start, axis)
    key = tuple(
        first if axis in window.squeezed else slice(first, first + size)
        for axis, (first, size) in enumerate(zip(start, window.sizes, strict=True))
    )
    return array[key]


def _beyond(
    this: CoreRun, window: BlockWindow, array: Array, start: BlockStart, axis: int
) -> BoundsError:
    block = [size for _, size, _ in window.facts.dims]
    message = (
        f"the index map of {window.facts.name} gives a block {block} that begins at "
        f"{list(start)}, beyond the edge of axis {axis} of its array {list(array.shape)}"
    )
    facts: dict[str, Any] = {"ref": window.facts.name, "index": start, "shape": tuple(array.shape)}
    return bounds_error(this.thread, message, this.kernel.line, **facts)
