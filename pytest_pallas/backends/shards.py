"""What one process holds of an array that is spread over several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_pallas.errors import GangError

type _Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shard:
    """The part of an array on one device of this process.

    Attributes:
      index: a slice for each axis: its place in the whole array.
      device: the name of the device.
      data: its elements.
    """

    index: tuple[slice, ...]
    device: str
    data: _Array = field(repr=False)


@dataclass(frozen=True)
class LocalShards:
    """What this process holds of an array that other processes hold parts of, too.

    Where every process holds a whole copy, it converts to numpy; otherwise ``gather()`` makes the
    whole array, which all processes must call.

    Attributes:
      shape: of the whole array.
      dtype: its dtype.
      shards: on the devices of this process, in their order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shards: tuple[Shard, ...]
    _array: Any = field(default=None, repr=False, compare=False)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> _Array:
        """The whole array, where this process has it, and its copies are equal."""
        del copy
        layers = self.layers()
        if len(layers) > 1:
            raise GangError(
                f"the devices of this process hold different copies of {self._words()}; see .shards"
            )
        values, present = layers[0]
        if not present.all():
            raise GangError(
                f"this process holds only a part of {self._words()}: compare each of .shards with "
                "the same part of what is expected (shard.data, shard.index), or call .gather() in "
                "all processes"
            )
        return values if dtype is None else values.astype(dtype)

    def layers(self) -> list[tuple[_Array, _Array]]:
        """The shards as arrays of the whole shape, each with a mask of the elements that it has.

        One layer is enough unless two devices hold different copies of the same part. Elements that
        are not in a layer are 0.
        """
        layers: list[tuple[_Array, _Array]] = []
        for shard in self.shards:
            for values, present in layers:
                there = present[shard.index]
                if not there.any():
                    values[shard.index], present[shard.index] = shard.data, True
                    break
                if there.all() and _same_bits(values[shard.index], shard.data):
                    break
            else:
                values = np.zeros(self.shape, self.dtype)
                present = np.zeros(self.shape, np.bool_)
                values[shard.index], present[shard.index] = shard.data, True
                layers.append((values, present))
        if not layers:  # no device of the mesh is here
            layers = [(np.zeros(self.shape, self.dtype), np.zeros(self.shape, np.bool_))]
        return layers

    def holders(self, index: Sequence[int], value: Any = None) -> list[Shard]:
        """The shards with the element at ``index``; those that have ``value`` there, if given."""
        found = [
            shard
            for shard in self.shards
            if all(_within(i, part) for i, part in zip(index, shard.index, strict=True))
        ]
        if value is None:
            return found
        same = [shard for shard in found if _same_bits(_at(shard, index), np.asarray(value))]
        return same or found

    def gather(self) -> _Array:
        """The whole array, from all processes. All of them must call it."""
        from jax.experimental import multihost_utils

        layers = self.layers()
        if len(layers) == 1 and layers[0][1].all() and self._array.is_fully_replicated:
            return layers[0][0]
        return np.asarray(multihost_utils.process_allgather(self._array, tiled=True))

    def _words(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def local_shards(array: Any) -> LocalShards:
    """What this process holds of a ``jax.Array``."""
    shards = [
        Shard(_whole_index(each.index, array.shape), str(each.device), np.asarray(each.data))
        for each in array.addressable_shards
    ]
    return LocalShards(tuple(array.shape), np.dtype(array.dtype), tuple(shards), array)


def describe_index(index: Sequence[slice]) -> str:
    """A place in an array: ``[8:16, 0:128]``."""
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in index) + "]"


def _whole_index(index: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
    """An index with its bounds written out."""
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))


def _within(position: int, part: slice) -> bool:
    return part.start <= position < part.stop


def _at(shard: Shard, index: Sequence[int]) -> _Array:
    inside = (i - part.start for i, part in zip(index, shard.index, strict=True))
    return np.asarray(shard.data[tuple(inside)])


def _same_bits(one: _Array, two: _Array) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()
