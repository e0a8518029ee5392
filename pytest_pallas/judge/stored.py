"""The gradient of a softmax whose output was stored in a narrow dtype before: what that changes.

Flash attention keeps its output for the backward pass, in the dtype of the output. Where a softmax
is sharp, the rounding of it is most of the gradient. See ``rounded_when_stored``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim import Equation, evaluate_with
from pallas_sim.dtypes import is_float, is_inexact
from pytest_pallas.judge.roundings import (
    CHOICES,
    EXPONENTIALS,
    MOVES,
    SUMS,
    Rounding,
    SharedResults,
)

_ADDITIONS = frozenset({"add", "add_any", "sub"})

_Evaluate = Callable[[Sequence[Any]], Sequence[Any]]


def rounded_when_stored(
    jaxpr: Any, arrays: Sequence[Any], rounding: Rounding, draws: int
) -> list[list[Any]]:
    """Evaluate the gradient of a softmax ``draws`` times, as if its output had been rounded.

    Nothing else is. A reference subtracts ``sum(p * dp)``, where ``dp = do @ v.T``, and a kernel
    ``sum(o * do)`` of the output ``o = p @ v`` that it stored in a narrow dtype. In the first, the
    error of rounding ``o`` is that of rounding ``do`` in the product, in this sum alone; that of
    rounding the terms of ``o``, likewise of ``v``. So a sum over a matrix product, multiplied with
    anything, has the error that the product has if its operands are rounded in the narrow dtype,
    once a function has exponentials. All that comes of the sum has that same error, but the
    gradient of a maximum, which is the sum of all others: 0, and no kernel computes it.

    Args:
      jaxpr: see ``rounded``, as for the others.
      arrays: one for each of its inputs.
      rounding: how large the errors are.
      draws: the number of evaluations.
    """
    results = SharedResults()
    return [
        evaluate_with(
            jaxpr,
            arrays,
            _StoredDraw(rounding, results).apply,
            lambda array: _Linear(results.constant(array).array),
            lambda value: value.answer,
        )
        for _ in range(draws)
    ]


@dataclass(frozen=True, slots=True)
class _Linear:
    """What a variable holds in the gradient of a softmax, and its errors, which add up linearly.

    Attributes:
      array: its value.
      error: of a matrix product, perhaps multiplied, how far it is off if its operands are rounded.
      owed: what comes of the error of a stored output.
      largest: whether it is 1 where an element is equal to another, such as the largest; else 0.
    """

    array: Any
    error: Any = None
    owed: Any = None
    largest: bool = False

    @property
    def answer(self) -> Any:
        """The value with its error."""
        return self.array if self.owed is None else self.array + self.owed


class _StoredDraw:
    """One evaluation with the rounding errors of a stored output."""

    def __init__(self, rounding: Rounding, results: SharedResults) -> None:
        """With errors of that size."""
        self._rounding = rounding
        self._results = results
        self._exponential = False

    def apply(
        self, equation: Equation, operands: Sequence[_Linear], evaluate: _Evaluate
    ) -> list[_Linear]:
        """Return the results of one operation; see ``pallas_sim.evaluate_with``."""
        name = equation.name
        bind = functools.partial(self._results.get, equation, evaluate)
        arrays = [operand.array for operand in operands]
        results = bind(arrays)
        self._exponential |= name in EXPONENTIALS
        largest = name == "eq" or (name in MOVES and operands[0].largest)
        owed = self._changed(name, bind, arrays, [operand.owed for operand in operands])
        if name == "mul" and any(operand.largest for operand in operands):
            owed = None  # in the gradient of a maximum: 0, but for what is owed
        if name == "dot_general" and not _is_sum(equation, arrays):
            error = None
            if all(is_float(array.dtype) for array in arrays):
                error = bind(self._moved(arrays))[0] - results[0]
            return [_Linear(results[0], error, owed)]
        error = None
        if name not in _ADDITIONS:
            error = self._changed(name, bind, arrays, [operand.error for operand in operands])
        if name in SUMS:
            if error is not None and self._exponential:
                owed = error if owed is None else owed + error
            return [_Linear(results[0], owed=owed)]
        return [_Linear(result, error, owed, largest) for result in results]

    def _moved(self, arrays: Sequence[Any]) -> list[Any]:
        """Return arrays with the errors of rounding them."""
        narrow, error = self._rounding.narrow, self._rounding.error
        return [(a * (1 + narrow * error(a.shape))).astype(a.dtype) for a in arrays]

    def _changed(
        self, name: str, bind: _Evaluate, arrays: Sequence[Any], errors: Sequence[Any]
    ) -> Any:
        """Return how far a result is off if its operands are; None if that is not linear."""
        if all(error is None for error in errors):
            return None
        if name in MOVES or name in CHOICES or name in _ADDITIONS or name == "reduce_sum":
            changes = list[Any]()
            for array, error in zip(arrays, errors, strict=True):
                exact = np.zeros_like(array) if is_inexact(array.dtype) else array
                changes.append(exact if error is None else error)
            return bind(changes)[0]
        if name not in ("mul", "div", "dot_general") or (name == "div" and errors[1] is not None):
            return None
        return sum(
            bind([*arrays[:position], error, *arrays[position + 1 :]])[0]
            for position, error in enumerate(errors)
            if error is not None
        )


def _is_sum(equation: Equation, arrays: Sequence[Any]) -> bool:
    """Return whether a product of matrices is the sum of one of numbers: of no other axes."""
    contracted, batch = equation.params["dimension_numbers"]
    return all(
        len(axes) + len(others) == np.ndim(array)
        for axes, others, array in zip(contracted, batch, arrays, strict=True)
    )
