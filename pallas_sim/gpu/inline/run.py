"""Run inlined code on all threads of a warpgroup: its arguments, its run, and its results.

JAX's layouts put arrays into the registers of threads; references become memory at addresses. The
monitor of order gets the reads and writes at each fence and at the end, as the smallest box of
elements around them: single accesses of 128 threads would be too many to compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import AccessKind, record_access
from pallas_sim.dtypes import Array
from pallas_sim.errors import MissingRuleError
from pallas_sim.gpu.barriers import meet
from pallas_sim.gpu.inline import arithmetic as arithmetic  # these register operations
from pallas_sim.gpu.inline import ptx as ptx
from pallas_sim.gpu.inline import references as references
from pallas_sim.gpu.inline.code import Fragments, InlineCode, InlineRef, tiled_shape
from pallas_sim.gpu.inline.memory import AddressSpace, InlineBuffer, InlineFrame, bits_of, signed
from pallas_sim.gpu.inline.references import MemrefView, dense_strides
from pallas_sim.gpu.threads import GpuThread
from pallas_sim.recording import Fenced


def execute(
    code: InlineCode,
    thread: GpuThread,
    arguments: Sequence[Any],
    results: Sequence[tuple[tuple[int, ...], Any]],
    line: str,
) -> list[Array]:
    """Run inlined code.

    Args:
      code: what to run.
      thread: a warpgroup or a warp.
      arguments: each array, and for each reference its name, its elements and whether they are in
        shared memory.
      results: shape and dtype of each.
      line: ``file:line``.

    Raises:
      UnreachableError: it accesses memory of no reference.
    """
    space = AddressSpace()

    def note() -> None:
        for buffer in space.buffers:
            _note(thread, buffer, line)

    def fence(orders_engines: bool) -> None:
        note()  # so that the accesses before a fence come before it in the recording
        if orders_engines:
            thread.recording.events.append(Fenced(thread.number))

    def meet_others(number: int, threads: int, waits: bool) -> None:
        if space.buffers:
            raise MissingRuleError(
                f"a barrier of {threads} threads between accesses to memory, in code that {count} "
                "threads run, is not simulated: let an inline_mgpu of its own have the barrier"
            )
        meet(thread, number, threads, line, waits=waits)

    count = 32 * len(thread.lanes)
    frame = InlineFrame(count, _first(thread), _geometry(thread), space, fence, meet_others)
    rows = slice(32 * thread.lanes[0], 32 * thread.lanes[0] + count)
    for layout, argument in zip(code.arguments, arguments, strict=True):
        if isinstance(layout, InlineRef):
            name, array, shared = argument
            frame.values[layout.number] = _view(space, layout, name, array, shared=shared)
        else:
            _scatter(frame, layout, np.asarray(argument), rows)
    frame.evaluate(code.body, [frame.values[number] for number in code.body.arguments])
    note()
    for buffer in space.buffers:
        buffer.give_back()
    return [
        _gathered(frame, layout, shape, dtype)
        for layout, (shape, dtype) in zip(code.results, results, strict=True)
    ]


def _first(thread: GpuThread) -> int:
    return 128 * thread.warpgroup + 32 * thread.lanes[0]


def _view(
    space: AddressSpace, layout: InlineRef, name: str, array: Array, *, shared: bool
) -> MemrefView:
    if array.dtype == object:
        raise MissingRuleError(f"{name}, which inline_mgpu is given, holds no numbers")
    if bits_of(array.dtype) < 8 and (layout.tiling or layout.swizzle):
        raise MissingRuleError(f"tiles of {array.dtype} in inline_mgpu are not simulated")
    buffer = space.add(name, array, shared=shared, tiling=layout.tiling, swizzle=layout.swizzle)
    shape = tiled_shape(array.shape, layout.tiling)
    base, offset = np.array([buffer.base], np.uint64), np.zeros(1, np.int64)
    return MemrefView(base, offset, shape, dense_strides(shape), array.dtype)


def _note(thread: GpuThread, buffer: InlineBuffer, line: str) -> None:
    """Record the reads and writes since the last call."""

    def record(kind: AccessKind, new: Array) -> None:
        for box in buffer.touched(new):
            part = buffer.array[box] if box else buffer.array
            record_access(thread, part, kind, buffer.name, line)

    record("read", buffer.read & ~buffer.noted_reads)
    record("write", buffer.written & ~buffer.noted_writes)
    buffer.noted_reads |= buffer.read
    buffer.noted_writes |= buffer.written


def _scatter(frame: InlineFrame, layout: Fragments, array: Array, rows: slice) -> None:
    """Give each thread its registers of an array."""
    flat = _as_bits(array).reshape(-1)
    if layout.elements is None:
        frame.values[layout.registers[0]] = flat[:1]
        return
    for number, register in enumerate(layout.registers):
        frame.values[register] = flat[layout.elements[rows, number]]


def _as_bits(array: Array) -> Array:
    """Convert integers to those of registers, without a sign."""
    bits = bits_of(array.dtype)
    if array.dtype.name in ("int4", "int2"):
        return (array.astype(np.int8) & (1 << bits) - 1).astype(f"uint{bits}")
    return array.view(np.dtype(f"u{array.dtype.itemsize}")) if array.dtype.kind == "i" else array


def _gathered(frame: InlineFrame, layout: Fragments, shape: tuple[int, ...], dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    if layout.elements is None:
        value = frame.values[layout.registers[0]]
        return np.broadcast_to(_as_dtype(value[:1], dtype)[0], shape).copy()
    flat = np.zeros(math.prod(shape), dtype)
    for number, register in enumerate(layout.registers):
        value = frame.all(frame.values[register])
        flat[layout.elements[:, number]] = _as_dtype(value, dtype)
    return flat.reshape(shape)


def _as_dtype(value: Array, dtype: np.dtype[Any]) -> Array:
    if value.dtype == dtype:
        return value
    if dtype.name in ("int4", "int2"):
        return signed(value).astype(dtype)
    return np.ascontiguousarray(value).view(dtype)


def _geometry(thread: GpuThread) -> dict[str, tuple[int, int, int]]:
    """Return CUDA's numbers of threads and blocks: the last axis of a grid is ``x``.

    JAX makes all axes before the last two ``z``.
    """
    mesh, block = thread.kernel_launch.mesh, thread.block
    cluster = _three([size for _, size in mesh.cluster], 1)
    in_cluster = _three(list(block.index), 0)
    sizes = [size for _, size in mesh.grid]
    point = list(block.cluster.point)
    if len(sizes) > 3:
        first = int(np.ravel_multi_index(point[:-2], sizes[:-2]))
        sizes, point = [math.prod(sizes[:-2]), *sizes[-2:]], [first, *point[-2:]]
    grid, at = _three(sizes, 1), _three(point, 0)
    number = tuple(a * size + b for a, size, b in zip(at, cluster, in_cluster, strict=True))
    whole = tuple(a * size for a, size in zip(grid, cluster, strict=True))
    return {
        "thread_id": (_first(thread), 0, 0),
        "block_dim": (128 * mesh.warpgroups, 1, 1),
        "block_id": (number[0], number[1], number[2]),
        "grid_dim": (whole[0], whole[1], whole[2]),
        "cluster_block_id": in_cluster,
        "cluster_dim_blocks": cluster,
    }


def _three(values: list[int], rest: int) -> tuple[int, int, int]:
    x, y, z = [*reversed(values), rest, rest, rest][:3]
    return x, y, z
