"""What the wrong elements of an output are: sentences about their values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import isqrt

import numpy as np

from pallas_sim.dtypes import Array

# How many wrong elements are looked at before all of them.
_SAMPLE = 64


def value_patterns(mask: Array, actual: Array, oracle: Array, slack: float) -> tuple[str, ...]:
    """How the wrong values relate to the right ones, the most specific relation first.

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
        found = [*_constant(wrong, right), *_moved(mask, actual, oracle, slack)]
        if not found:
            found = [*_scaled(wrong, right, slack), *(_wrapped(wrong, right) if slack == 0 else ())]
    return tuple(found)


def _single(wrong: Array, right: Array, slack: float) -> Iterator[str]:
    """What a single value can show; of factors only those that are no chance."""
    if np.isnan(wrong[0]):
        yield "the wrong element is NaN (read before it was written?)"
    elif wrong[0] == 0:
        yield "the wrong element is 0 (never written, or masked out?)"
    elif right[0] != 0 and _fits(wrong, -right, slack):
        yield "the wrong element has the wrong sign"
    else:
        for factor in (2, 0.5):
            if right[0] != 0 and _fits(wrong, factor * right, slack):
                yield f"the wrong element is {factor} times the oracle"


def _constant(wrong: Array, right: Array) -> Iterator[str]:
    """All the wrong values are the same."""
    if np.isnan(wrong).all():
        yield "the wrong elements are all NaN (read before they were written?)"
    elif (wrong == 0).all():
        yield "the wrong elements are all 0 (never written, or masked out?)"
    elif (wrong == wrong[0]).all() and not (right == right[0]).all():
        yield f"the wrong elements are all {wrong[0]:.6g}"


def _moved(mask: Array, actual: Array, oracle: Array, slack: float) -> Iterator[str]:
    """The right values are there, in other places."""
    if (oracle == oracle.flat[0]).all():
        return
    square = oracle.ndim >= 2 and oracle.shape[-1] == oracle.shape[-2]
    if square and _fits(actual, np.swapaxes(oracle, -1, -2), slack):
        yield "the output is the oracle with its last two axes transposed"
        return
    for axis in (axis for axis, size in enumerate(oracle.shape) if size > 1):
        for shift in (1, -1):
            if _fits(actual, np.roll(oracle, shift, axis), slack):
                yield f"the output is the oracle rolled by {shift} along axis {axis}"
                return
    if oracle.ndim >= 2:
        block = _swapped_blocks(mask, actual, oracle, slack)
        if block:
            yield f"block (i, j) of {block} holds what belongs in block (j, i): swapped indices?"


def _swapped_blocks(
    mask: Array, actual: Array, oracle: Array, slack: float
) -> tuple[int, int] | None:
    """The shape of blocks of which ``actual`` has (j, i) in place of (i, j), if there is one.

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
        if not _fits(actual[some], oracle[*some[:-2], *source], slack):
            continue
        row, column = np.arange(rows)[:, None], np.arange(columns)[None]
        source = _swapped(row, column, block, (rows, columns))
        if _fits(actual, oracle[..., *source], slack):
            return block
    return None


def _swapped(
    row: Array, column: Array, block: tuple[int, int], shape: tuple[int, int]
) -> tuple[Array, Array]:
    """The rows and columns that swapped block indices take the elements from."""
    (height, width), (rows, columns) = block, shape
    from_row = np.minimum(column // width, rows // height - 1) * height + row % height
    from_column = np.minimum(row // height, columns // width - 1) * width + column % width
    return from_row, from_column


def _divisors(number: int) -> list[int]:
    low = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})


def _scaled(wrong: Array, right: Array, slack: float) -> Iterator[str]:
    """The wrong values are the right ones times one constant."""
    top = np.abs(right).max()
    if wrong.size < 3 or not np.isfinite(wrong).all() or not 0 < top < np.inf:
        return
    weights = np.conj(right) / top  # least squares, scaled so that nothing overflows
    factor = np.sum(wrong * weights) / np.sum(right * weights)
    if not np.isfinite(factor) or factor == 0 or not _fits(wrong, factor * right, slack):
        return
    if abs(factor + 1) <= slack:
        yield "the wrong elements have the wrong sign"
    elif abs(factor - 1) > slack:
        direction = np.round(factor / abs(factor), 4) + 0.0  # no 1e-17 beside an imaginary unit
        yield f"the wrong elements are {direction * abs(factor):.4g} times the oracle"


def _wrapped(wrong: Array, right: Array) -> Iterator[str]:
    """Integers that are off by multiples of a power of two."""
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
    """The integer dtype of ``bits`` that holds the wrong elements, as a question."""
    signed = np.abs(wrong + 0.5).max() < 2.0 ** (bits - 1)
    unsigned = wrong.min() >= 0 and wrong.max() < 2.0**bits
    name = f"int{bits}" if signed else f"uint{bits}" if unsigned else f"{bits} bits"
    return f"(wrapped around in {name}?)"


def _fits(actual: Array, candidate: Array, slack: float) -> bool:
    """Whether ``actual`` is ``candidate`` to within ``slack`` of its scale, NaN equal to NaN."""
    magnitude = np.abs(candidate)
    finite = magnitude[np.isfinite(magnitude)]
    top = finite.max(initial=0.0)
    scale = top * np.sqrt(np.mean(np.square(finite / top))) if top > 0 else 0.0
    near = np.abs(actual - candidate) <= slack * np.maximum(magnitude, scale)
    same = (actual == candidate) | (np.isnan(actual) & np.isnan(candidate))
    return bool((same | (near & np.isfinite(actual))).all())
