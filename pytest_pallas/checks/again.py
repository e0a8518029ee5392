"""A kernel run again with what must not matter changed, and compared with the first run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas.backends import Outcome
from pytest_pallas.checks.trial import Trial, run
from pytest_pallas.errors import KernelError
from pytest_pallas.numerics import Comparison, bitwise, is_complex, is_float, wide
from pytest_pallas.oracle import flatten


def run_again(trial: Trial, args: tuple[Any, ...], words: str, **rest: Any) -> Outcome:
    """Run the kernel as ``trial.run`` does; ``words`` say what is changed.

    Raises:
      KernelError: the kernel raised, and did not before; the message says with what.
    """
    try:
        return run(trial, trial.kernel, args, **rest)
    except KernelError as error:
        changed = type(error)(f"{error}\n  {words}; without, the kernel does not raise")
        changed.__cause__ = error.__cause__
        raise changed from error.__cause__


def unchanged(again: Outcome, first: Outcome, words: str) -> Iterator[Comparison]:
    """Every output against the first run's, bit for bit but for the payload of NaN."""
    for (path, actual), (_, wanted) in zip(
        flatten(again.values), flatten(first.values), strict=True
    ):
        where = f"{path or 'output'}, {words}"
        yield bitwise(_one_nan(actual), _one_nan(wanted), where=where)


def _one_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not (is_float(array.dtype) or is_complex(array.dtype)):
        return array
    nan = np.isnan(wide(array))
    return np.where(nan, np.array(np.nan).astype(array.dtype), array) if nan.any() else array
