"""Products of narrow numbers, and the one by hand, each beside the tiled matmul in bfloat16.

There is no bundled kernel for either; what is asked is what they gain over the plain one.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from reference_kernels.matmul import matmul, matmul_explicit_mxu, matmul_quantized
from tpu_comparisons.rows import Row, Side

_SIZE = 4096


def _square(dtype: str) -> Any:
    return jax.ShapeDtypeStruct((_SIZE, _SIZE), dtype)


def _plain(**blocks: int) -> Side:
    return Side(call=functools.partial(matmul, **blocks), args=(_square("bfloat16"),) * 2, work=1)


def _quantized(x: str, w: str) -> Row:
    blocks = {"block_m": 512, "block_n": 512, "block_k": 1024}
    scale = jax.ShapeDtypeStruct((_SIZE,), "float32")
    return Row(
        name=f"matmul_quantized {x} {w}",
        unit="block of 512 x 512 x 1024",
        ours=Side(
            call=functools.partial(matmul_quantized, **blocks),
            args=(_square(x), _square(w), scale, scale),
            work=1,
        ),
        theirs=_plain(**blocks),
        chips=("v5e", "v6e", "tpu7x"),
    )


ROWS = [
    _quantized("int8", "int8"),
    _quantized("int8", "int4"),
    _quantized("float8_e5m2", "float8_e5m2"),
    _quantized("float8_e4m3fn", "float8_e4m3fn"),
    Row(
        name="matmul_explicit_mxu",
        unit="block of 256 x 512 x 1024",
        ours=Side(
            call=functools.partial(matmul_explicit_mxu, block_m=256, tiles_k=4),
            args=(_square("bfloat16"),) * 2,
            work=1,
        ),
        theirs=_plain(block_m=256, block_n=512, block_k=1024),
        chips=("v6e", "tpu7x"),
    ),
]
