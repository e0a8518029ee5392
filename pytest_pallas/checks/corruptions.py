"""Right answers made wrong: what a test that is worth its name must reject. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas.numerics import is_bool, is_exact, wide

Array = np.ndarray[Any, Any]


def corruptions(answer: Array, *, fraction: float = 0.0) -> Iterator[tuple[str, Array]]:
    """Wrong answers made of a right one, each with what was done to it in a few words.

    Each is a mistake of real kernels: a scale forgotten, a sign, an index off by one, a block not
    written, the wrong row, swapped axes. Some may happen to equal the answer.

    Args:
      answer: any shape, and a bool, integer, float or complex dtype.
      fraction: the share of elements that may be wrong; the smallest corruption has one more.

    Yields:
      Arrays of the shape and dtype of ``answer``.
    """
    if not answer.size:
        return
    if not is_exact(answer.dtype):
        with np.errstate(all="ignore"):
            yield "scaled by 1.1", (wide(answer) * 1.1).astype(answer.dtype)
    yield _few_wrong(answer, int(fraction * answer.size) + 1)
    for axis in range(answer.ndim):
        if answer.shape[axis] > 1:
            yield f"rolled by one along axis {axis}", np.roll(answer, 1, axis)
            yield f"zeros in the last place of axis {axis}", _without_last(answer, axis)
    if answer.ndim:
        yield "one row replaced by its neighbour", _row_off(answer)
    if answer.ndim > 1 and answer.shape[-1] == answer.shape[-2] > 1:
        yield "last two axes transposed", np.ascontiguousarray(answer.swapaxes(-1, -2))


def _few_wrong(answer: Array, count: int) -> tuple[str, Array]:
    """The ``count`` largest elements with the other sign, or off by one, or flipped."""
    changed = answer.copy()
    flat = changed.reshape(-1)
    values = wide(flat)
    size = f"the {count} largest elements" if count > 1 else "the largest element"
    if is_bool(answer.dtype):
        chosen = slice(0, count)
        flat[chosen] = ~flat[chosen]
        return f"{count} {'bools' if count > 1 else 'bool'} flipped", changed
    if is_exact(answer.dtype):
        # Towards zero, so that nothing wraps around; a zero becomes one.
        chosen = np.argsort(-np.abs(values.astype(np.float64)), kind="stable")[:count]
        moved = [int(v) + (1 if v <= 0 else -1) for v in values[chosen].tolist()]
        flat[chosen] = np.array(moved).astype(answer.dtype)
        return f"{size} off by one", changed
    magnitude = np.where(np.isfinite(values), np.abs(values), -1.0)
    chosen = np.argsort(-magnitude, kind="stable")[:count]
    flat[chosen] = -flat[chosen]
    return f"{size} with the other sign", changed


def _without_last(answer: Array, axis: int) -> Array:
    changed = answer.copy()
    index = [slice(None)] * answer.ndim
    index[axis] = slice(-1, None)
    changed[tuple(index)] = np.zeros((), answer.dtype)
    return changed


def _row_off(answer: Array) -> Array:
    """The middle row of the first matrix, or the middle of a vector, as the one before it."""
    changed = answer.copy()
    matrix = changed
    while matrix.ndim > 2:
        matrix = matrix[0]
    if matrix.ndim == 2 and matrix.shape[0] == 1:
        matrix = matrix[0]
    middle = matrix.shape[0] // 2
    if middle:
        matrix[middle] = matrix[middle - 1].copy()
    return changed
