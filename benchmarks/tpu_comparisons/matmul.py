"""The tiled matmul, by itself: how busy it keeps the matrix unit."""

from __future__ import annotations

import functools

import jax

from reference_kernels.matmul import matmul
from tpu_comparisons.rows import Row, Side


def _row(size: int, **blocks: int) -> Row:
    operand = jax.ShapeDtypeStruct((size, size), "bfloat16")
    call = functools.partial(matmul, **blocks)
    return Row(
        name=f"matmul {size}",
        unit="block",
        ours=Side(call=call, args=(operand, operand), work=1),
        chips=("v5e", "v5p", "v6e"),
    )


ROWS = [_row(8192)]
