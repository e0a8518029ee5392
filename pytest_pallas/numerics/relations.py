"""What the wrong elements of an output are: sentences about their values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_pallas.numerics.dtypes import Array


def value_patterns(mask: Array, actual: Array, oracle: Array, slack: float) -> tuple[str, ...]:
    """How the wrong values relate to the right ones, the most specific relation first.

    Args:
      mask: bool, True where ``actual`` is wrong.
      actual: the kernel's output in float64 or complex128, of the shape of ``mask``.
      oracle: the right values, likewise.
      slack: how far values may be from a relation, relative to the output scale.
    """
    wrong, right = actual[mask], oracle[mask]
    if wrong.size < 2:
        return ()
    with np.errstate(all="ignore"):
        found = [*_constant(wrong, right), *_moved(actual, oracle, slack)]
        if not found:
            found = [*_scaled(wrong, right, slack)]
    return tuple(found)


def _constant(wrong: Array, right: Array) -> Iterator[str]:
    """All the wrong values are the same."""
    if np.isnan(wrong).all():
        yield "the wrong elements are all NaN (read before they were written?)"
    elif (wrong == 0).all():
        yield "the wrong elements are all 0 (never written, or masked out?)"
    elif (wrong == wrong[0]).all() and not (right == right[0]).all():
        yield f"the wrong elements are all {wrong[0]:.6g}"


def _moved(actual: Array, oracle: Array, slack: float) -> Iterator[str]:
    """The right values are there, in other places."""
    if (oracle == oracle.flat[0]).all():
        return
    square = oracle.ndim >= 2 and oracle.shape[-1] == oracle.shape[-2]
    if square and _fits(actual, np.swapaxes(oracle, -1, -2), slack):
        yield "the output is the oracle with its last two axes transposed"
        return
    for axis in range(oracle.ndim):
        for shift in (1, -1):
            if _fits(actual, np.roll(oracle, shift, axis), slack):
                yield f"the output is the oracle rolled by {shift} along axis {axis}"
                return


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


def _fits(actual: Array, candidate: Array, slack: float) -> bool:
    """Whether ``actual`` is ``candidate`` to within ``slack`` of its scale, NaN equal to NaN."""
    magnitude = np.abs(candidate)
    finite = magnitude[np.isfinite(magnitude)]
    top = finite.max(initial=0.0)
    scale = top * np.sqrt(np.mean(np.square(finite / top))) if top > 0 else 0.0
    near = np.abs(actual - candidate) <= slack * np.maximum(magnitude, scale)
    same = (actual == candidate) | (np.isnan(actual) & np.isnan(candidate))
    return bool((same | (near & np.isfinite(actual))).all())
