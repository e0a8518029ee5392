"""Where the wrong elements of an output are: sentences about a boolean mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pallas_sim.dtypes import Array

# A place is only reported when as many wrong elements, thrown at random, would all have fallen
# into one of its kind less than once in a thousand times.
_CHANCE = math.log(1000)


def location_patterns(
    mask: Array, block_shape: Sequence[int | None] | None = None
) -> tuple[str, ...]:
    """What the places of the True elements of ``mask`` have in common, the most specific first.

    Args:
      mask: bool, of any shape.
      block_shape: shape of the blocks that the output is written in, None for a squeezed
        dimension; ignored if its length is not the number of axes.
    """
    count = int(np.count_nonzero(mask))
    if count == 0 or mask.size == 1:
        return ()
    if count == mask.size:
        return ("every element is wrong",)
    if count == 1:
        return ("a single element is wrong",)
    axes = [np.flatnonzero(mask.any(axis=_others(mask.ndim, axis))) for axis in range(mask.ndim)]
    found = [_blocks(mask, block_shape, count), _box(mask, axes, count)]
    found.append(_diagonal(mask))
    if not any(found[1:]):
        found += [_confined(mask, axis, indices, count) for axis, indices in enumerate(axes)]
    return tuple(text for text in found if text)


def _others(ndim: int, axis: int) -> tuple[int, ...]:
    return tuple(other for other in range(ndim) if other != axis)


def _surprising(count: int, fraction: float, choices: float) -> bool:
    """Whether ``count`` elements can hardly be in one place by chance.

    The place is ``fraction`` of the array and one of ``exp(choices)`` of its kind, so that the
    probability is at most ``exp(choices) * fraction ** count``.
    """
    return 0 < fraction < 1 and count * -math.log(fraction) - choices > _CHANCE


def _subsets(number: int, size: int) -> float:
    """The logarithm of the number of subsets of ``size`` out of ``number``."""
    return math.lgamma(number + 1) - math.lgamma(size + 1) - math.lgamma(number - size + 1)


def _contiguous(indices: Array) -> bool:
    return int(indices[-1] - indices[0]) + 1 == indices.size


def _blocks(mask: Array, block_shape: Sequence[int | None] | None, count: int) -> str:
    """Whole blocks of the output, or few of them."""
    if block_shape is None or len(block_shape) != mask.ndim or mask.ndim == 0:
        return ""
    counts, volumes = mask.astype(np.int64), np.ones((), np.int64)
    for axis, (dim, size) in enumerate(zip(mask.shape, block_shape, strict=True)):
        starts = np.arange(0, dim, max(size or 1, 1))
        counts = np.add.reduceat(counts, starts, axis=axis)
        volumes = np.multiply.outer(volumes, np.diff(starts, append=dim))
    touched = counts > 0
    number = int(np.count_nonzero(touched))
    whole = bool((counts[touched] == volumes[touched]).all())
    choices = _subsets(touched.size, number)
    if not whole and not _surprising(count, number / touched.size, choices):
        return ""
    shown = " ".join(str(tuple(row)) for row in np.argwhere(touched)[:4].tolist())
    size = tuple(size or 1 for size in block_shape)
    lead = "whole blocks" if whole else "confined to blocks"
    rest = " ..." if number > 4 else ""
    return f"{lead} of shape {size}: {number} of {touched.size}, at block index {shown}{rest}"


def _box(mask: Array, axes: Sequence[Array], count: int) -> str:
    """A box that is full of wrong elements and confined in two axes or more."""
    parts: list[str] = []
    volume, confined = 1, 0
    for dim, indices in zip(mask.shape, axes, strict=True):
        first, last = int(indices[0]), int(indices[-1])
        volume *= last - first + 1
        confined += last - first + 1 < dim
        whole = last - first + 1 == dim
        parts.append(":" if whole else str(first) if first == last else f"{first}:{last + 1}")
    if volume != count or confined < 2:
        return ""
    return f"exactly the box [{', '.join(parts)}]"


def _confined(mask: Array, axis: int, indices: Array, count: int) -> str:
    """A part of one axis that has all the wrong elements."""
    dim = mask.shape[axis]
    if indices.size == dim:
        return ""
    name, fraction = _axis_name(axis, mask.ndim), indices.size / dim
    full = count == mask.size // dim * indices.size
    if _contiguous(indices):
        likely = full or _surprising(count, fraction, math.log(dim))
        return f"only {_range(indices, dim, name)}" if likely else ""
    steps = np.diff(indices)
    if indices.size >= 3 and (steps == steps[0]).all():
        likely = _surprising(count, fraction, 2 * math.log(dim))
        first, second, last = (int(indices[i]) for i in (0, 1, -1))
        text = f"only indices {first}, {second}, ... {last} (every {steps[0]}th) of {name}"
        return text if likely else ""
    likely = indices.size <= 8 and _surprising(count, fraction, _subsets(dim, indices.size))
    return f"only indices {', '.join(map(str, indices.tolist()))} of {name}" if likely else ""


def _axis_name(axis: int, ndim: int) -> str:
    names = {ndim - 2: " (rows)", ndim - 1: " (columns)"} if ndim >= 2 else {}
    return f"axis {axis}{names.get(axis, '')}"


def _range(indices: Array, dim: int, name: str) -> str:
    first, last = int(indices[0]), int(indices[-1])
    if first == last:
        ends = {0: ", the first", dim - 1: ", the last"}
        return f"index {first} of {name}{ends.get(first, '')}"
    if last == dim - 1:
        # A last block that is not full is less than half of the axis.
        hint = ", a tail mask?" if 2 * indices.size < dim else ""
        return f"indices >= {first} of {name}: the last {indices.size} of {dim}{hint}"
    if first == 0:
        return f"indices < {last + 1} of {name}, which has {dim}"
    return f"indices {first} to {last} of {name}"


def _diagonal(mask: Array) -> str:
    """The diagonal of the last two axes, one parallel to it, or one side of it."""
    if mask.ndim < 2 or min(mask.shape[-2:]) < 2:
        return ""
    rows, columns = mask.shape[-2:]
    plane = mask.reshape(-1, rows, columns).any(axis=0)
    box = plane[np.ix_(plane.any(axis=1), plane.any(axis=0))]
    if box.all():
        return ""  # whole rows or columns, which may happen to be on one side
    offset = np.arange(columns) - np.arange(rows)[:, None]
    hit = offset[plane]
    low, high = int(hit.min()), int(hit.max())
    if low == high:
        sign = "" if low == 0 else f" {'+' if low > 0 else '-'} {abs(low)}"
        region, text = offset == low, f"where column = row{sign}"
    elif low >= 0:
        relation = ">=" if low == 0 else ">"
        region, text = offset >= min(low, 1), f"where column {relation} row (above the diagonal)"
    elif high <= 0:
        relation = "<=" if high == 0 else "<"
        region, text = offset <= max(high, -1), f"where column {relation} row (below the diagonal)"
    else:
        return ""
    # One row or column of a corner would be on one side of the diagonal as well.
    choices = math.log(rows + columns)
    if not _surprising(hit.size, float(region.mean()), choices):
        return ""
    if 2 * hit.size < np.count_nonzero(region):
        return ""
    return f"only {text}, in the last two axes"
