"""Specs of ``matmul_quantized``."""

from __future__ import annotations

from typing import Any

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.matmul.matmul_quantized import PAIRS, matmul_quantized, reference


def _inputs(*pairs: tuple[str, str]) -> Any:
    """Calls of these dtypes of ``x`` and ``w``, with scales of one dtype and the other in turn."""
    scales = [("float32", "bfloat16")[place % 2] for place in range(len(pairs))]
    dtypes = [(*pair, scale, scale) for pair, scale in zip(pairs, scales, strict=True)]
    return pst.arguments(
        pst.arrays(
            "m k, k n, m, n",
            dtype=pst.dtype_pairs(*dtypes),
            around={"m": 32, "k": 128, "n": 128},
        ),
        tuning={"block_m": 32, "block_n": 128, "block_k": 128},
    )


def _typical(*dtypes: str) -> pst.Arguments:
    return pst.shaped(
        "m k, k n, m, n",
        dtype=(*dtypes, "float32", "float32"),
        dims={"m": 2048, "k": 2048, "n": 2048},
    )


_RELATIONS = (
    Linear(2),
    Linear(3),
    Permuted({0: 0, 2: 0}, output=0),
    Permuted({1: 1, 3: 0}, output=1),
    Permuted({0: 1, 1: 0}),
)

SPEC_INTEGERS = KernelSpec(
    name="matmul_int8",
    kernel=matmul_quantized,
    reference=reference,
    inputs=_inputs(("int8", "int8"), ("int8", "int4")),
    exact=True,
    batch_axes=(0, None, 0, None),
    relations=_RELATIONS,
    typical=(_typical("int8", "int8"), _typical("int8", "int4")),
)

SPEC_FLOAT8 = KernelSpec(
    name="matmul_float8",
    kernel=matmul_quantized,
    reference=reference,
    inputs=_inputs(*PAIRS[2:]),
    exact=True,
    batch_axes=(0, None, 0, None),
    relations=_RELATIONS,
    typical=(_typical("float8_e4m3fn", "float8_e4m3fn"),),
)
