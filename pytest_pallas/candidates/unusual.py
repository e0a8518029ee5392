"""How a candidate treats NaN, infinity and huge numbers: what a report tells, and refuses nothing.

The order of operations decides where a NaN goes: flash attention leaves out a block that is masked,
and jnp multiplies what is in it with 0, which is NaN. So a right kernel may differ here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pallas_sim.dtypes import float_facts, is_float, wide
from pytest_pallas.judge.tolerance import FINITE, classes

#: Arguments that get such numbers, each alone.
_MOST_ARGUMENTS = 4


def unusual_inputs(args: Sequence[Any], seed: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield calls in which one element of one array of floats is unusual, each with its name."""
    rng = np.random.default_rng(seed)
    floats = [n for n, arg in enumerate(args) if np.size(arg) and is_float(arg.dtype)]
    for position in floats[:_MOST_ARGUMENTS]:
        largest = float_facts(args[position].dtype).largest
        for name, value in (("NaN", np.nan), ("infinity", np.inf), ("a huge number", largest / 4)):
            array = np.array(args[position])
            array.flat[int(rng.integers(array.size))] = value
            yield f"{name} in argument {position}", (*args[:position], array, *args[position + 1 :])


def difference(name: str, expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """Return how results differ in what is finite; "" if they do not.

    Args:
      name: of the call.
      expected: what the reference gives, in the kernel's dtypes.
      actual: what the candidate gives.
    """
    lost = added = other = total = 0
    for one, result in zip(expected, actual, strict=True):
        if np.shape(one) != np.shape(result) or not is_float(np.asarray(result).dtype):
            continue
        right, own = (classes(wide(np.asarray(value))) for value in (one, result))
        lost += int(np.count_nonzero((own == FINITE) & (right != FINITE)))
        added += int(np.count_nonzero((own != FINITE) & (right == FINITE)))
        other += int(np.count_nonzero((own != right) & (own != FINITE) & (right != FINITE)))
        total += right.size
    parts = [
        f"{count} {text}"
        for count, text in (
            (lost, "are finite, and NaN or infinite in the reference"),
            (added, "are NaN or infinite, and finite in the reference"),
            (other, "are NaN in place of infinite, or the other way round"),
        )
        if count
    ]
    return f"{name}: of {total} elements {', '.join(parts)}" if parts else ""
