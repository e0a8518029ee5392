"""What the specs of 16-bit matrix products ``x (m, k) @ y (k, n)`` share: draws and relations."""

from __future__ import annotations

from typing import Any

from pytest_pallas import strategies as pst
from pytest_pallas.spec import Linear, Permuted

#: What ``wgmma`` and ``mma`` multiply, besides float8.
DTYPE = pst.floats("bfloat16", "float16")

#: Terms of the sums: up to five steps of 64, more than there are buffers.
TERMS = {"k": [1, 65, 200, 320]}

MAX_BYTES = 2**17

#: Rows of ``x``, and the terms of every sum.
PERMUTED = (Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}))

#: Of a product with no activation.
RELATIONS = (Linear(0), Linear(1), *PERMUTED)

LARGE = {"m": 4096, "k": 4096, "n": 4096}


def operands(around: dict[str, int], **dims: Any) -> Any:
    """Draws ``x (m, k)`` and ``y (k, n)``.

    Args:
      around: sizes near multiples of which ``m``, ``n`` or ``k`` are drawn.
      **dims: sizes that are chosen from a list.
    """
    return pst.arrays("m k, k n", dtype=DTYPE, around=around, dims=dims, max_bytes=MAX_BYTES)


def large(dtype: str = "bfloat16", **dims: int) -> pst.Arguments:
    """A typical product, of 4096 in each direction but for ``dims``."""
    return pst.shaped("m k, k n", dtype=dtype, dims=LARGE | dims)
