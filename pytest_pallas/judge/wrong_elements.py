"""What the wrong elements of an output have in common, as sentences for the message.

``location_patterns`` looks at where they are: whole blocks, a box, rows, one side of a diagonal.
``value_patterns`` looks at how their values relate to the right ones: all the same, moved to other
places, times a constant, wrapped around.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from math import isqrt

import numpy as np

from pallas_sim.dtypes import Array

# A place is only reported when as many wrong elements, thrown at random, would all have fallen
# into one of its kind less than once in a thousand times.
_CHANCE = math.log(1000)


def location_patterns(
    mask: Array, block_shape: Sequence[int | None] | None = None
) -> tuple[str, ...]:
    """Describe what the places of the wrong elements have in common, the most specific first.

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
    every = set(range(mask.ndim))
    axes = [np.flatnonzero(mask.any(axis=tuple(every - {axis}))) for axis in range(mask.ndim)]
    patterns = [_blocks(mask, block_shape, count), _box(mask, axes, count), _diagonal(mask)]
    if not any(patterns[1:]):
        patterns += [_confined(mask, axis, indices, count) for axis, indices in enumerate(axes)]
    return tuple(text for text in patterns if text)


def _surprising(count: int, fraction: float, choices: float) -> bool:
    """Return whether ``count`` elements can hardly be in one place by chance.

    The place is ``fraction`` of the array and one of ``exp(choices)`` of its kind, so that the
    probability is at most ``exp(choices) * fraction ** count``.
    """
    return 0 < fraction < 1 and count * -math.log(fraction) - choices > _CHANCE


def _subsets(number: int, size: int) -> float:
    """Return the logarithm of the number of subsets of ``size`` out of ``number``."""
    return math.lgamma(number + 1) - math.lgamma(size + 1) - math.lgamma(number - size + 1)


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
    """Return a box that is full of wrong elements and confined in two axes or more."""
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
    """Return a part of one axis that has all the wrong elements."""
    dim = mask.shape[axis]
    if indices.size == dim:
        return ""
    names = {mask.ndim - 2: " (rows)", mask.ndim - 1: " (columns)"} if mask.ndim >= 2 else {}
    name, fraction = f"axis {axis}{names.get(axis, '')}", indices.size / dim
    full = count == mask.size // dim * indices.size
    if int(indices[-1] - indices[0]) + 1 == indices.size:
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
    """Return the diagonal of the last two axes, one parallel to it, or one side of it."""
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


# How the wrong values relate to the right ones.

# How many wrong elements are looked at before all of them.
_SAMPLE = 64


def value_patterns(mask: Array, actual: Array, oracle: Array, slack: float) -> tuple[str, ...]:
    """Return how the wrong values relate to the right ones, the most specific relation first.

    Args:
      mask: bool, True where ``actual`` is wrong.
      actual: the kernel's output in float64 or complex128, of the shape of ``mask``.
      oracle: the right values, likewise.
      slack: how far values may be from a relation, relative to the output scale; 0 of integers.
    """
    wrong, right = actual[mask], oracle[mask]
    if not wrong.size:
        return ()
    with np.errstate(all="ignore"):
        if wrong.size == 1:
            return tuple(_single(wrong, right, slack))
        relations = [*_constant(wrong, right), *moved_values(mask, actual, oracle, slack)]
        if not relations:
            relations = [
                *(_scaled(wrong, right, slack) or _offset(wrong, right, slack)),
                *(_wrapped(wrong, right) if slack == 0 else ()),
            ]
    return tuple(relations)


def _single(wrong: Array, right: Array, slack: float) -> Iterator[str]:
    """Yield what a single value can show; of factors only those that are no chance."""
    if np.isnan(wrong[0]):
        yield "the wrong element is NaN (read before it was written?)"
    elif wrong[0] == 0:
        yield "the wrong element is 0 (never written, or masked out?)"
    elif right[0] != 0 and fits(wrong, -right, slack):
        yield "the wrong element has the wrong sign"
    else:
        for factor in (2, 0.5):
            if right[0] != 0 and fits(wrong, factor * right, slack):
                yield f"the wrong element is {factor} times the oracle"


def _constant(wrong: Array, right: Array) -> Iterator[str]:
    """Report that all the wrong values are the same."""
    if np.isnan(wrong).all():
        yield "the wrong elements are all NaN (read before they were written?)"
    elif (wrong == 0).all():
        yield "the wrong elements are all 0 (never written, or masked out?)"
    elif (wrong == wrong[0]).all() and not (right == right[0]).all():
        yield f"the wrong elements are all {wrong[0]:.6g}"


def moved_values(mask: Array, actual: Array, oracle: Array, slack: float) -> Iterator[str]:
    """Report that the right values are there, in other places; the arguments are as above."""
    if (oracle == oracle.flat[0]).all():
        return
    square = oracle.ndim >= 2 and oracle.shape[-1] == oracle.shape[-2]
    if square and fits(actual, np.swapaxes(oracle, -1, -2), slack):
        yield "the output is the oracle with its last two axes transposed"
        return
    for axis in (axis for axis, size in enumerate(oracle.shape) if size > 1):
        for shift in (1, -1):
            if fits(actual, np.roll(oracle, shift, axis), slack):
                yield f"the output is the oracle rolled by {shift} along axis {axis}"
                return
    if oracle.ndim >= 2:
        block = _swapped_blocks(mask, actual, oracle, slack)
        if block is None:
            return
        if any(size == length for size, length in zip(block, oracle.shape[-2:], strict=True)):
            # In one row of blocks, swapped indices are those of the first block: as other mistakes.
            yield f"each block of {block} holds what belongs in the first one: a constant index?"
        else:
            yield f"block (i, j) of {block} holds what belongs in block (j, i): swapped indices?"


def _swapped_blocks(
    mask: Array, actual: Array, oracle: Array, slack: float
) -> tuple[int, int] | None:
    """Find the shape of blocks such that block (i, j) of ``actual`` is block (j, i) of the oracle.

    Where there are more blocks one way than the other, (j, i) may be beyond the end; then the last
    block is taken, as the portable interpreter of Pallas does. Only shapes that divide the last
    two axes are tried.
    """
    rows, columns = oracle.shape[-2:]
    some = tuple(index[:_SAMPLE] for index in np.nonzero(mask))
    if len(some[0]) < 4:  # too few to distinguish a rule from chance
        return None
    for block in product(_divisors(rows), _divisors(columns)):
        if block in ((1, 1), (rows, columns)):
            continue
        # Few elements rule out nearly every shape, whatever the size of the output.
        source = _swapped(some[-2], some[-1], block, (rows, columns))
        if not fits(actual[some], oracle[*some[:-2], *source], slack):
            continue
        row, column = np.arange(rows)[:, None], np.arange(columns)[None]
        source = _swapped(row, column, block, (rows, columns))
        if fits(actual, oracle[..., *source], slack) and _shows_a_swap(mask, block):
            return block
    return None


def _shows_a_swap(mask: Array, block: tuple[int, int]) -> bool:
    """Return whether an element is wrong in a block that another one can swap with.

    The others have the last block, as a table of pages may give it to them. In one row of blocks
    all have the same.
    """
    (height, width), (rows, columns) = block, mask.shape[-2:]
    i, j = np.arange(rows)[:, None] // height, np.arange(columns)[None] // width
    low, high = sorted((rows // height, columns // width))
    pairs = (i != j) & (np.maximum(i, j) < low)
    return bool((mask & pairs).any()) or (low == 1 < high)


def _swapped(
    row: Array, column: Array, block: tuple[int, int], shape: tuple[int, int]
) -> tuple[Array, Array]:
    """Return the rows and columns that swapped block indices take the elements from."""
    (height, width), (rows, columns) = block, shape
    from_row = np.minimum(column // width, rows // height - 1) * height + row % height
    from_column = np.minimum(row // height, columns // width - 1) * width + column % width
    return from_row, from_column


def _divisors(number: int) -> list[int]:
    low = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})


def _scaled(wrong: Array, right: Array, slack: float) -> list[str]:
    """Report that the wrong values are the right ones times one constant."""
    top = np.abs(right).max()
    if wrong.size < 3 or not np.isfinite(wrong).all() or not 0 < top < np.inf:
        return []
    weights = np.conj(right) / top  # least squares, scaled so that nothing overflows
    factor = np.sum(wrong * weights) / np.sum(right * weights)
    if not np.isfinite(factor) or factor == 0 or not fits(wrong, factor * right, slack):
        return []
    if abs(factor + 1) <= slack:
        return ["the wrong elements have the wrong sign"]
    if abs(factor - 1) <= slack:
        return []
    direction = np.round(factor / abs(factor), 4) + 0.0  # no 1e-17 beside an imaginary unit
    number = direction * abs(factor)
    shown = f"{number:.4g}" if f"{number:.4g}" != "1" else f"{number:.7g}"
    return [f"the wrong elements are {shown} times the oracle"] if shown != "1" else []


def _offset(wrong: Array, right: Array, slack: float) -> list[str]:
    """Report that the wrong values are the right ones plus one constant, which is no rounding."""
    differences = wrong - right
    if wrong.size < 3 or not np.isfinite(differences).all():
        return []
    scale = np.sqrt(np.mean(np.square(np.abs(right))))
    offset = np.mean(differences)
    spread = np.abs(differences - offset).max()
    size = slack * max(scale, abs(offset))
    if spread > size or abs(offset) <= 8 * size or (right == right[0]).all():
        return []
    if np.iscomplexobj(wrong):
        return [f"the wrong elements are the oracle plus {offset:.4g}"]
    return [
        f"the wrong elements are the oracle {'plus' if offset > 0 else 'minus'} {abs(offset):.4g}"
    ]


def _wrapped(wrong: Array, right: Array) -> Iterator[str]:
    """Report integers that are off by multiples of a power of two."""
    if max(np.abs(wrong).max(), np.abs(right).max()) > 2.0**53:  # not exact in float64
        return
    different = np.unique(np.stack([wrong, right]), axis=1).shape[1]
    for bits in (32, 16, 8, 4):
        # By chance each is such a multiple once in 2**bits times; if all right ones are, always.
        likely = bits * different >= 16 and (right % 2**bits).any()
        if likely and not ((wrong - right) % 2**bits).any():
            yield f"the wrong elements are off by multiples of 2**{bits} {_narrow(wrong, bits)}"
            return


def _narrow(wrong: Array, bits: int) -> str:
    """Return the integer dtype of ``bits`` that holds the wrong elements, as a question."""
    signed = np.abs(wrong + 0.5).max() < 2.0 ** (bits - 1)
    unsigned = wrong.min() >= 0 and wrong.max() < 2.0**bits
    name = f"int{bits}" if signed else f"uint{bits}" if unsigned else f"{bits} bits"
    return f"(wrapped around in {name}?)"


def fits(actual: Array, candidate: Array, slack: float) -> bool:
    """Return whether ``actual`` is ``candidate`` within ``slack`` of its scale; NaN equals NaN."""
    magnitude = np.abs(candidate)
    finite = magnitude[np.isfinite(magnitude)]
    top = finite.max(initial=0.0)
    scale = top * np.sqrt(np.mean(np.square(finite / top))) if top > 0 else 0.0
    near = np.abs(actual - candidate) <= slack * np.maximum(magnitude, scale)
    same = (actual == candidate) | (np.isnan(actual) & np.isnan(candidate))
    return bool((same | (near & np.isfinite(actual))).all())
