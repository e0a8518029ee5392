"""Windows of global memory that copy engines read and write.

A window may begin before the array and reach beyond it. Reads there return zero, writes there are
dropped (PTX ISA, "Tensors", "Out of Boundary Access"). JAX drops the index along an axis of one
tile: ``without_unit_axes``. A list of rows may index the first axis. ``im2col`` windows are those
of ``plgpu.im2col_ref``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.compat.places import is_at_peer, names_a_device, peer_in, transforms_in
from pallas_sim.cores import CoreAddress, peer_of
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.gpu.threads import GpuThread, memory_at
from pallas_sim.memory import Elements, Outside, Ref, Region
from pallas_sim.transforms import (
    AtAll,
    AtPeer,
    AxisSlice,
    Elsewhere,
    Im2Col,
    Indexed,
    Operand,
    Peer,
    RefPart,
    Transform,
    Transposed,
    Untiled,
)
from pallas_sim.windows import read

#: The indices of a window along an axis of an array: an ascending range, a list that a kernel
#: gives, or one number for an axis that the window lacks.
type Indices = range | Array | int


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """A part of an array, which may reach beyond the array.

    Attributes:
      region: its elements that the array has.
      shape: of the whole window.
      inside: the index of these elements in the window; None if it has no others.
      array: the array, if the window reaches beyond it or lists rows.
      axes: the indices along each axis of the array.
      listed: whether the kernel lists some of these indices (a gather or a scatter).
      name: of the reference.
      home: the device whose memory it is.
    """

    region: Region
    shape: tuple[int, ...]
    inside: tuple[Any, ...] | None = None
    array: Array | None = None
    axes: tuple[Indices, ...] = ()
    listed: bool = False
    name: str = ""
    home: int = 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The first index along each axis of the array."""
        return tuple(int(np.ravel(indices)[0]) for indices in self.axes)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """``(start, stop)`` along each axis of the array, of the elements that it has."""
        assert self.array is not None
        used, _ = _within(self.axes, self.array.shape)
        return tuple((int(min(indices)), int(max(indices)) + 1) for indices in used)

    def load(self, fill: Any = 0) -> Array:
        """Load the elements, and ``fill`` for those that the array does not have."""
        values = _values(self.region)
        if self.inside is None:
            return values.reshape(self.shape)
        whole = np.full(self.shape, fill, values.dtype)
        whole[self.inside] = values.reshape(whole[self.inside].shape)
        return whole

    def store(self, values: Array, change: Any = None) -> None:
        """Write the elements that the array has.

        Args:
          values: of the whole window.
          change: returns new elements for the old ones and ``values``; None to overwrite.
        """
        part = values if self.inside is None else values[self.inside]
        region = self.region
        if isinstance(region, Elements):
            old = region.memory[region.key]
            part = part.reshape(old.shape)
            region.memory[region.key] = part if change is None else change(old, part)
        else:
            part = part.reshape(region.shape)
            region[...] = part if change is None else change(region, part)

    def part(self, axis: int, start: int, stop: int) -> EngineWindow:
        """Slice the window along an axis."""
        if self.array is None:
            key = (slice(None),) * axis + (slice(start, stop),)
            assert not isinstance(self.region, Elements)
            region = self.region[key]
            return replace(self, region=region, shape=region.shape)
        axes = list(self.axes)
        number = [at for at, indices in enumerate(axes) if not isinstance(indices, int)][axis]
        indices = axes[number]
        assert not isinstance(indices, int)
        axes[number] = indices[start:stop]
        return self.at(axes)

    def at(self, axes: Sequence[Indices]) -> EngineWindow:
        """Return the window of the same array with other indices along its axes."""
        assert self.array is not None
        window = _gathered(self.array, axes, listed=self.listed)
        return replace(window, name=self.name, home=self.home)


def _values(region: Region) -> Array:
    return region.memory[region.key] if isinstance(region, Elements) else region.copy()


def window_of(
    ref: Ref, transforms: Sequence[Transform], operands: Sequence[Any], *, promised: bool = False
) -> EngineWindow:
    """Return the window that an equation names.

    Args:
      ref: the array.
      transforms: from the array to the window.
      operands: of the equation.
      promised: whether the kernel promises that it is inside of the array.

    Raises:
      Outside: the kernel breaks its promise.
      SimulationError: an engine cannot access such a window.
    """
    if transforms and isinstance(transforms[0], Im2Col):
        return _im2col(ref.data, transforms, operands)
    try:
        part = read(ref.data, transforms, operands)
    except Outside:
        if promised:
            raise
        return _composed(ref.data, transforms, operands)
    if np.may_share_memory(part, ref.data) or not part.size:
        return EngineWindow(part, part.shape)
    return _composed(ref.data, transforms, operands)


@dataclass(frozen=True, slots=True)
class UnitAxis:
    """An axis of an array along which JAX drops the index of a copy.

    Attributes:
      axis: of the array.
      start: the index that the kernel gave.
      tile: elements of the one tile that the axis has; 1 where the copy has no tiles.
    """

    axis: int
    start: int
    tile: int


def tiles_of(transforms: Sequence[Transform]) -> tuple[int, ...]:
    """Return the tiles of a part of shared memory along its last axes; () without tiles.

    Args:
      transforms: from the memory to the part.
    """
    tiles: tuple[int, ...] = ()
    for transform in transforms:
        if isinstance(transform, Untiled):
            tiles = transform.tiling
        elif tiles and isinstance(transform, Indexed):
            pairs = zip(_tiles(tiles, len(transform.indices)), transform.indices, strict=True)
            tiles = tuple(tile for tile, index in pairs if isinstance(index, AxisSlice))
        elif tiles and isinstance(transform, Transposed):
            before = _tiles(tiles, len(transform.permutation))
            tiles = tuple(before[axis] for axis in transform.permutation)
    return tiles


def _tiles(tiles: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a tile for each of ``rank`` axes: 1 for axes before those of ``tiles``."""
    return (*(1,) * (rank - len(tiles)), *tiles[max(len(tiles) - rank, 0) :])


def without_unit_axes(
    window: EngineWindow, tiles: Sequence[int]
) -> tuple[EngineWindow, tuple[UnitAxis, ...]]:
    """Return the window that a TMA copy accesses in place of one that is partly outside.

    JAX tiles the array as shared memory is tiled. If an axis has one tile then, and the window has
    one tile along it, the axis is not part of the TMA descriptor. So the window is at the tile 0,
    whatever index the kernel gives (``DropUnitDimsTransform`` in ``jax/experimental/mosaic/gpu/
    launch_context.py``, JAX 0.11.2 and 0.12.0.1; measured on an H200). Without tiles, that is an
    axis of one element. Gathers and scatters keep their indices.

    Args:
      window: of global memory.
      tiles: of the part of shared memory; see ``tiles_of``.

    Returns:
      The window, and the axes whose index was dropped and had pointed to another tile; none if the
      array has no element of the window along the other axes.
    """
    array = window.array
    if array is None or window.inside is None or window.listed:
        return window, ()
    axes = list(window.axes)
    tile_of = iter(_tiles(tiles, len(window.shape)))
    dropped: list[UnitAxis] = []
    for axis, (indices, size) in enumerate(zip(axes, array.shape, strict=True)):
        tile, count = (1, 1) if isinstance(indices, int) else (next(tile_of), len(indices))
        start = indices if isinstance(indices, int) else int(indices[0]) if count else 0
        if 0 < size <= tile == count and start // tile:
            axes[axis] = _moved(indices, start // tile * tile)
            dropped.append(UnitAxis(axis, start, tile))
    if not dropped:
        return window, ()
    moved = window.at(axes)
    return moved, tuple(dropped) if _values(moved.region).size else ()


def _moved(indices: Indices, by: int) -> Indices:
    """Return indices less a number."""
    if isinstance(indices, range):
        return range(indices.start - by, indices.stop - by, indices.step)
    return indices - by


def _composed(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> EngineWindow:
    """Return a window that reaches beyond its array, or lists rows."""
    for transform in transforms:
        if not isinstance(transform, Indexed):
            raise SimulationError(
                "a copy engine reads and writes slices of an array in global memory, and no "
                f"{type(transform).__name__.lower()} one"
            )
    listed = any(isinstance(transform, Indexed) and transform.joint for transform in transforms)
    return _gathered(array, _indices_along(array.shape, transforms, operands), listed=listed)


def _indices_along(
    shape: Sequence[int], transforms: Sequence[Transform], operands: Sequence[Any]
) -> list[Indices]:
    """Return the indices of a window along each axis of an array.

    Args:
      shape: of the array.
      transforms: from the array to the window, each of them ``Indexed``.
      operands: of the equation.
    """
    axes: list[Indices] = [range(size) for size in shape]
    for transform in transforms:
        assert isinstance(transform, Indexed)
        left = [axis for axis, indices in enumerate(axes) if not isinstance(indices, int)]
        for axis, index in zip(left, transform.indices, strict=True):
            before = axes[axis]
            assert not isinstance(before, int)
            start = int(before[0]) if len(before) else 0
            step = int(before[1]) - start if len(before) > 1 else 1
            if isinstance(index, AxisSlice):
                first, size = _number(index.start, operands), _number(index.size, operands)
                axes[axis] = _spaced(start + step * first, step * index.stride, size)
                continue
            assert isinstance(index, Operand | int)
            value = np.asarray(_value(index, operands)).astype(np.int64)
            axes[axis] = start + step * (value.ravel() if value.ndim else int(value))
    return axes


def _spaced(start: int, step: int, size: int) -> range | Array:
    """Return so many indices; a list where they descend, as behind a list that a kernel gives."""
    if step > 0:
        return range(start, start + step * size, step)
    return start + step * np.arange(size)


def _within(
    axes: Sequence[Indices], shape: Sequence[int]
) -> tuple[list[range | Array], list[slice | Array | None]]:
    """Return the indices along each axis that an array of this shape has, and which these are.

    None stands for all of them.
    """
    pairs = [_within_axis(indices, size) for indices, size in zip(axes, shape, strict=True)]
    return [used for used, _ in pairs], [there for _, there in pairs]


def _within_axis(indices: Indices, size: int) -> tuple[range | Array, slice | Array | None]:
    if isinstance(indices, range):
        start, step = indices.start, indices.step
        first = max(0, -(start // step))
        last = max(first, min(len(indices), -((start - size) // step)))
        whole = first == 0 and last == len(indices)
        return indices[first:last], None if whole else slice(first, last)
    listed = np.atleast_1d(indices)
    there = (listed >= 0) & (listed < size)
    return listed[there], None if there.all() else there


def _gathered(array: Array, axes: Sequence[Indices], *, listed: bool = False) -> EngineWindow:
    shape = tuple(len(indices) for indices in axes if not isinstance(indices, int))
    used, there = _within(axes, array.shape)
    inside: tuple[Any, ...] | None = None
    if any(ok is not None for ok in there):
        pairs = list(zip(there, axes, strict=True))
        inside = _index_of([ok for ok, indices in pairs if not isinstance(indices, int)], shape)
        if any(ok is not None for ok, indices in pairs if isinstance(indices, int)):
            # A number along an axis that the window lacks is outside, so all of the window is.
            inside = tuple(np.zeros((0,) * len(shape), np.int64) for _ in shape)
            used = [np.zeros(0, np.int64) for _ in used]
    # A view costs nothing, and writes to it change the array. Lists of rows need ``Elements``.
    slices = list(map(_slice, used))
    if None not in slices:
        region: Region = array[(*slices, ...)]
    else:
        key = np.broadcast_arrays(*np.ix_(*map(_array, used)))
        region = Elements(array, tuple(indices.ravel() for indices in key))
    return EngineWindow(region, shape, inside, array, tuple(axes), listed)


def _index_of(parts: Sequence[slice | Array | None], shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the index of some elements along each axis: slices, or arrays if one is a list."""
    slices = [slice(None) if part is None else part for part in parts]
    if all(isinstance(part, slice) for part in slices):
        return tuple(slices)
    every = map(np.arange, shape)
    return np.ix_(*(numbers[part] for numbers, part in zip(every, slices, strict=True)))


def _array(indices: range | Array) -> Array:
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    return indices


def _slice(indices: range | Array) -> slice | None:
    """Return the slice that has these indices; None if they are no ascending range."""
    if not len(indices):
        return slice(0, 0)
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    if not isinstance(indices, range) and (step <= 0 or (np.diff(indices) != step).any()):
        return None
    return slice(int(indices[0]), int(indices[-1]) + 1, step)


def _im2col(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> EngineWindow:
    """Return rows of windows of a padded image: an element of each window, and some channels."""
    first, *rest = transforms
    assert isinstance(first, Im2Col)
    images, *spatial, channels = array.shape
    sizes = [
        size + low + high - window + 1
        for size, window, (low, high) in zip(spatial, first.window, first.padding, strict=True)
    ]
    shape = (images * math.prod(sizes), *first.window, channels)
    if not all(isinstance(transform, Indexed) for transform in rest):
        raise SimulationError("an im2col reference can only be indexed")
    lists = any(isinstance(transform, Indexed) and transform.joint for transform in rest)
    axes = _indices_along(shape, rest, operands)
    rows, columns = (
        indices if isinstance(indices, int) else _array(indices) for indices in (axes[0], axes[-1])
    )
    sliced = sum(not isinstance(indices, int) for indices in axes)
    if isinstance(rows, int) or isinstance(columns, int) or sliced != 2 or lists:
        raise SimulationError(
            "an im2col reference must be indexed by a slice of rows, a number along each axis of "
            "the window and a slice of channels"
        )
    # A row is an image and a position of the window in it; the last spatial axis counts fastest.
    flat, indices, there = rows, list[Array](), np.ones(rows.shape, np.bool_)
    for axis in reversed(range(len(spatial))):
        offset = axes[1 + axis]
        assert isinstance(offset, int)
        index = flat % sizes[axis] - first.padding[axis][0] + offset
        flat = flat // sizes[axis]
        indices.insert(0, index)
        there &= (index >= 0) & (index < spatial[axis])
    indices.insert(0, flat)
    there &= (flat >= 0) & (flat < images)
    within = (columns >= 0) & (columns < channels)
    used = columns[within]
    memory = array[..., int(used[0]) : int(used[-1]) + 1] if used.size else array[..., :0]
    key = tuple(index[there] for index in indices)
    inside = None if there.all() and within.all() else np.ix_(there, within)
    return EngineWindow(Elements(memory, key), (rows.size, columns.size), inside)


def _number(value: int | Operand, operands: Sequence[Any]) -> int:
    return int(operands[value.position]) if isinstance(value, Operand) else value


def _value(index: int | Operand, operands: Sequence[Any]) -> Any:
    value = operands[index.position] if isinstance(index, Operand) else index
    return value.data if isinstance(value, Ref) else value


# The memory of other devices, and of all devices at once.


def memories_of(
    thread: GpuThread,
    ref: Ref,
    places: Sequence[Elsewhere],
    operands: Sequence[Any],
    line: str,
) -> Iterator[tuple[Ref, int]]:
    """Yield the references that a name stands for, each with the device whose memory it is.

    Args:
      thread: who names it.
      ref: its own memory.
      places: whose memory is meant.
      operands: of the equation.
      line: of the equation.
    """
    here = thread.owner.device
    for home in places:
        if isinstance(home, AtPeer):
            where = peer_of(thread, home.peer, operands)
            if where is not None:
                yield at_device(thread, where.device, ref, line), where.device
                return
        elif isinstance(home, AtAll):
            for device in devices_along(thread, home.axes):
                yield at_device(thread, device, ref, line), device
            return
        else:
            yield thread.elsewhere(ref, places, operands, line), here
            return
    yield ref, here


def devices_along(thread: GpuThread, axes: Sequence[Any]) -> list[int]:
    """Return the devices that differ from the thread's at most along some mesh axes."""
    sizes = thread.sizes
    numbers = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    key = tuple(slice(None) if name in axes else thread.axes[name] for name in sizes)
    return [int(number) for number in np.ravel(numbers[key])]


def at_device(thread: GpuThread, device: int, ref: Ref, line: str) -> Ref:
    """Return the memory of any device that corresponds to the thread's own."""
    if device == thread.owner.device:
        return ref
    return memory_at(thread, CoreAddress(device, {}), ref, line)


class _Mesh:  # ``semaphore_signal_parallel`` names devices by their position in the mesh
    name = "MESH"


def signals_of(params: Any, count: int) -> list[tuple[RefPart, int, Peer | None]]:
    """Return semaphore, position of the amount, and device of each signal of a parallel one."""
    arguments = params["args_tree"].unflatten(list(map(Operand, range(count))))
    return [
        (
            RefPart(ref.position, transforms_in(transforms)),
            amount.position,
            peer_in(device, None, _Mesh),
        )
        for ref, transforms, amount, device in zip(*arguments, strict=True)
    ]


def reaches_devices(eqn: Any) -> bool:
    """Return whether an equation of JAX accesses memory or semaphores of other devices."""
    name, count = eqn.primitive.name, len(eqn.invars)
    if name in ("multimem_store", "multimem_load_reduce", "semaphore_signal_multicast"):
        return True
    if name == "semaphore_signal_parallel":
        return any(peer is not None for _, _, peer in signals_of(eqn.params, count))
    if names_a_device(eqn):
        return True
    trees = [param for param in eqn.params.values() if hasattr(param, "num_leaves")]
    return any(_holds_peer(tree.unflatten([Operand(0)] * tree.num_leaves)) for tree in trees)


def _holds_peer(value: Any) -> bool:
    inner: Any = value if isinstance(value, tuple | list) else getattr(value, "transforms", None)
    return is_at_peer(value) if inner is None else any(map(_holds_peer, inner))
