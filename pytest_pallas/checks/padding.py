"""``padding``: what lies beyond the edge of an array, or is ignored, never matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas import compat
from pytest_pallas.backends import Outcome, label
from pytest_pallas.backends.fills import FILLS, WORDS
from pytest_pallas.checks.ignored import masks_of, poisoned
from pytest_pallas.checks.trial import Finding, Trial, run
from pytest_pallas.errors import KernelError, NotApplicableError
from pytest_pallas.numerics import Comparison, bitwise, is_complex, is_float, wide
from pytest_pallas.oracle import flatten


def padding(trial: Trial) -> Finding:
    """Run the kernel with other numbers where none should matter, and compare bit for bit.

    First, memory that nobody has written: blocks beyond the edge of an array, scratch, outputs.
    The interpreters fill it with NaN, which hides from comparisons and does not exist in integers;
    so it is filled with the largest and with the lowest finite numbers too. A kernel without such
    memory is not run again. Then the elements of the arguments that the spec says are ignored.

    Raises:
      NotApplicableError: there is neither.
      KernelError: the kernel raised, and did not before; the message says with what.
    """
    first = run(trial, trial.kernel, trial.arguments.args)
    fills = list(FILLS) if _exposed(trial, first) else []
    masks = masks_of(trial.ignored, trial.arguments)
    if not fills and masks is None:
        raise NotApplicableError(_why_not(trial))
    seconds, comparisons = first.seconds, list[Comparison]()
    for fill in fills:
        words = f"with {WORDS[fill]} in memory that nobody has written"
        again = _run(trial, trial.arguments.args, words, fill=fill)
        seconds += again.seconds
        comparisons += _unchanged(again, first, words)
    for words, args in poisoned(trial.arguments.args, masks) if masks is not None else ():
        again = _run(trial, args, words)
        seconds += again.seconds
        comparisons += _unchanged(again, first, words)
    return Finding(comparisons=comparisons, outcome=first, seconds=seconds)


def _exposed(trial: Trial, first: Outcome) -> bool:
    """Whether a kernel could read what nobody has written, and the backend says what is there."""
    if not getattr(trial.backend, "fills", False):
        return False
    return not trial.jit or any(compat.unwritten_memory(kernel.eqn) for kernel in first.kernels)


def _why_not(trial: Trial) -> str:
    if getattr(trial.backend, "fills", False):
        return (
            "in no example does a block hang over the edge of its array, or is there scratch or "
            "an output that is read; and no ignored= says what else must not matter"
        )
    return (
        f"{label(trial.backend)} cannot be told what memory holds that nobody has written, and no "
        "ignored= says what else must not matter"
    )


def _run(trial: Trial, args: tuple[Any, ...], words: str, *, fill: str = "") -> Outcome:
    try:
        # Races were looked for in the first run.
        return run(trial, trial.kernel, args, races=not fill and trial.races, fill=fill)
    except KernelError as error:
        changed = type(error)(f"{error}\n  {words}; without, the kernel does not raise")
        changed.__cause__ = error.__cause__
        raise changed from error.__cause__


def _unchanged(again: Outcome, first: Outcome, words: str) -> Iterator[Comparison]:
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
