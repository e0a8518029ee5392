"""Run a kernel again with a change that must not matter, and compare with the first run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_sim.errors import KernelError
from pytest_pallas.backends import Outcome
from pytest_pallas.checks.context import CheckContext, exactly, expect, judge, run
from pytest_pallas.numerics import Comparison, bitwise, epsilon, is_complex, is_float, wide
from pytest_pallas.oracle.expected import flatten


def run_again(context: CheckContext, args: tuple[Any, ...], words: str, **rest: Any) -> Outcome:
    """Run the kernel as ``context.run`` does; ``words`` describe the change.

    Raises:
      KernelError: the kernel raised, and did not before; the message has the change.
    """
    try:
        return run(context, context.kernel, args, **rest)
    except KernelError as error:
        changed = error.with_message(f"{error}\n  {words}; otherwise the kernel does not raise")
        raise changed from error.__cause__


#: Ulps of the output's scale by which floats may differ; floats of at most 16 bits by less, because
#: they are often float32 sums that are rounded once. The fill of memory is a constant of the
#: program, and XLA may compile another constant with other roundings: seen in splash attention. A
#: fill that affects the output is NaN, 0 or the end of a range in one of the runs, which is more
#: than a few ulps.
_SLACK, _NARROW_SLACK = 64.0, 4.0


def unchanged(again: Outcome, first: Outcome, words: str) -> Iterator[Comparison]:
    """Compare every output with the first run's: bitwise, except for the last bits of floats.

    NaN and infinities must be at the same places in both.
    """
    for (path, actual), (_, wanted) in zip(
        flatten(again.values), flatten(first.values), strict=True
    ):
        where = f"{path or 'output'}, {words}"
        found = bitwise(_one_nan(actual), _one_nan(wanted), where=where, change=words)
        yield _rounded(found) if _is_rounded(found, actual.dtype) else found


def identical(
    context: CheckContext, again: Any, first: Any, words: str, *, change: str
) -> Sequence[Comparison]:
    """Compare the outputs of a kernel with those of another run, bit for bit.

    A kernel that is not ``deterministic`` may add in another order: then both must be as close to
    the oracle as ``forward`` requires.

    Args:
      context: has the reference and the tolerance.
      again: the outputs, a tree.
      first: those of the other run, a tree of the same structure.
      words: what comes after the name of an output in messages.
      change: what is different in the first of the two runs, for messages.
    """
    if not context.deterministic:
        return judge(context, again, expect(context), exact=exactly(context))
    return [
        bitwise(actual, wanted, where=f"{path or 'output'}{words}", change=change)
        for (path, actual), (_, wanted) in zip(flatten(again), flatten(first), strict=True)
    ]


def _is_rounded(found: Comparison, dtype: np.dtype[Any]) -> bool:
    """Whether a difference can be rounding."""
    if found.passed or found.kind != "bitwise" or not (is_float(dtype) or is_complex(dtype)):
        return False
    return found.error <= (_SLACK if epsilon(dtype) < 2**-11 else _NARROW_SLACK)


def _rounded(found: Comparison) -> Comparison:
    return replace(found, passed=True, wrong=0, explanation=None, patterns=(), mask=None)


def _one_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not (is_float(array.dtype) or is_complex(array.dtype)):
        return array
    nan = np.isnan(wide(array))
    return np.where(nan, np.array(np.nan).astype(array.dtype), array) if nan.any() else array
