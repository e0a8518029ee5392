"""Windows of an array at computed positions, for gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class GatherWindows:
    """Which windows of an array an array of positions stands for.

    Attributes:
      axes: of the array that are indexed, in order; windows hold all of the others.
      sizes: of the windows along these axes.
      limits: largest positions along these axes.
      columns: where in the index vector the position is, for each of these axes; None for a
        batching axis.
      fixed: positions along the batching axes, in the shape of the windows; None elsewhere.
      shape: of the positions, without the index vector.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    limits: tuple[int, ...]
    columns: tuple[int | None, ...]
    fixed: tuple[Array | None, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls,
        array: Sequence[int],
        positions: Sequence[int],
        sizes: Sequence[int],
        index_map: Sequence[int],
        batching: Sequence[tuple[int, int]],
    ) -> GatherWindows:
        """The windows of an equation.

        Args:
          array: shape of the array.
          positions: shape of the positions; the last axis is the index vector.
          sizes: of a window, one for each axis of the array.
          index_map: the axis of the array for each entry of the index vector.
          batching: axes of the array that go along with axes of the positions.
        """
        shape = tuple(positions[:-1])
        columns: dict[int, int | None] = {axis: None for axis, _ in batching}
        columns |= {axis: column for column, axis in enumerate(index_map)}
        axes = tuple(sorted(columns))
        fixed: list[Array | None] = []
        along = dict(batching)
        for axis in axes:
            if axis not in along:
                fixed.append(None)
                continue
            ones = [1] * len(shape)
            ones[along[axis]] = shape[along[axis]]
            fixed.append(np.arange(shape[along[axis]]).reshape(ones))
        return cls(
            axes=axes,
            sizes=tuple(sizes[axis] for axis in axes),
            limits=tuple(array[axis] - sizes[axis] for axis in axes),
            columns=tuple(columns[axis] for axis in axes),
            fixed=tuple(fixed),
            shape=shape,
        )

    def starts(self, positions: Array) -> list[Array]:
        """Where the windows begin, along each axis, before they are limited to the array."""
        if positions.dtype.kind != "i" or positions.itemsize < 4:  # which a place may exceed
            positions = positions.astype(np.int64)
        return [
            fixed if fixed is not None else positions[..., column]
            for column, fixed in zip(self.columns, self.fixed, strict=True)
        ]

    def outside(self, starts: Sequence[Array]) -> Array | None:
        """Which windows are not entirely inside, or None if all are."""
        found: Array | None = None
        for start, limit, column in zip(starts, self.limits, self.columns, strict=True):
            if column is None or not start.size:
                continue
            # As an unsigned number, a negative position is larger than any limit.
            if start.view(f"u{start.itemsize}").max() > limit:
                out = (start < 0) | (start > limit)
                found = out if found is None else found | out
        return found

    def limited(self, starts: Sequence[Array]) -> list[Array]:
        """Starts that are moved so that the whole window lies inside."""
        return [
            start if column is None else np.minimum(np.maximum(start, 0), limit)
            for start, limit, column in zip(starts, self.limits, self.columns, strict=True)
        ]

    def elements(self, starts: Sequence[Array]) -> tuple[Array, ...]:
        """Index arrays of the windows' elements: axes of the positions, then of the windows."""
        if all(size == 1 for size in self.sizes):
            return tuple(starts)
        spread: list[Array] = []
        for number, (start, size) in enumerate(zip(starts, self.sizes, strict=True)):
            ones = [1] * len(self.sizes)
            ones[number] = size
            offsets = np.arange(size).reshape(ones)
            spread.append(start.reshape(start.shape + (1,) * len(ones)) + offsets)
        return tuple(spread)

    @property
    def flat(self) -> bool:
        """Whether each window is one element along all indexed axes."""
        return all(size == 1 for size in self.sizes)
