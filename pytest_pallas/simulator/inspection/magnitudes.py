"""The least magnitude that a run computes with: whether a smaller format may underflow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.numerics import is_complex, is_float
from pytest_pallas.simulator.inspection.inspector import Inspector

if TYPE_CHECKING:
    from pytest_pallas.simulator.program import Step
    from pytest_pallas.simulator.thread import Thread

#: The results of these are sums, whose terms are products of elements of the operands.
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


@dataclass(eq=False)
class MagnitudeRecorder(Inspector):
    """An inspector that keeps the least magnitude of what a run computes.

    Attributes:
      least: of all finite results of floats that are not 0, and a lower bound of that of the terms
        of products of matrices; infinite if there are none.
    """

    least: float = math.inf

    def steps(self, steps: Sequence[Step], thread: Thread, env: Sequence[Any]) -> Iterator[Step]:
        """The steps of a program; their results are looked at after each."""
        for step in super().steps(steps, thread, env):
            terms = math.inf
            if step.equation.name in _PRODUCTS:
                terms = math.prod(_least(env[slot]) for slot in step.ins[:2])
            yield step
            self.least = min([self.least, terms, *(_least(env[slot]) for slot in step.outs)])


def _least(value: Any) -> float:
    """The least magnitude of the finite elements of an array that are not 0."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype) or not (is_float(dtype) or is_complex(dtype)):
        return math.inf
    sizes = np.abs(np.asarray(value)).astype(np.float64)
    return float(sizes.min(initial=math.inf, where=(sizes > 0) & np.isfinite(sizes)))
