"""What the 2:4 sparse product refuses, what it costs, and what its reference computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import refuses

from reference_kernels.mosaic_gpu import blackwell_sparse_matmul
from reference_kernels.mosaic_gpu.blackwell_sparse_matmul import PAIRS, expanded, reference


def call(
    values: tuple[int, ...] = (128, 128),
    pairs: tuple[int, ...] = (128, 64),
    y: tuple[int, ...] = (128, 256),
    dtypes: tuple[str, str, str] = ("bfloat16", "int32", "bfloat16"),
    **settings: Any,
) -> Any:
    operands = (jnp.ones(*each) for each in zip((values, pairs, y), dtypes, strict=True))
    return lambda: blackwell_sparse_matmul(*operands, **settings)


def test_misuse() -> None:
    refuses(call(values=(128, 64, 2)), "values must have the shape (m, k//2)")
    refuses(call(y=(256,)), "y must have the shape (n, k)")
    refuses(call(values=(100, 128)), "the m of values must be a multiple of 128, but it is 100")
    refuses(call(y=(100, 256)), "the n of y must be a multiple of 128, but it is 100")
    refuses(call(y=(128, 192)), "the k of y must be a multiple of 128, but it is 192")
    refuses(call(values=(128, 256)), "values must have half of the k of y, 128, but has 256")
    refuses(call(pairs=(128, 128)), "pairs must be int32 of the shape (128, 64)", "(128, 128)")
    refuses(call(stages=1), "stages must be at least 2, but it is 1")
    refuses(call(stages=0), "stages must be a positive integer")


def test_dtypes() -> None:
    float32, half = "float32", "float16"
    refuses(call(dtypes=(float32, "int32", float32)), "values must be bfloat16", "tf32")
    refuses(call(dtypes=("bfloat16", "int32", half)), "y must have the dtype of values")
    refuses(call(dtypes=("bfloat16", "int8", "bfloat16")), "pairs must be int32", "it is int8")
    refuses(
        call(values=(128, 64), y=(128, 128), dtypes=("float8_e4m3fn", "int32", "float8_e4m3fn")),
        "the k of y must be a multiple of 256, but it is 128",
    )


def test_the_reference_puts_zeros_back() -> None:
    values = jnp.arange(1.0, 13.0).reshape(1, 12)
    pairs = jnp.arange(6).reshape(1, 6)
    x = np.zeros((1, 24), np.float32)
    for group, pair in enumerate(PAIRS):
        for each, place in enumerate(pair):
            x[0, 4 * group + place] = values[0, 2 * group + each]
    np.testing.assert_array_equal(expanded(values, pairs), x)
    y = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    np.testing.assert_allclose(reference(values, pairs, jnp.asarray(y)), x @ y.T, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_nothing_spills(pallas_compile: Any, dtype: str) -> None:
    values = jax.ShapeDtypeStruct((256, 256), jnp.dtype(dtype))
    pairs = jax.ShapeDtypeStruct((256, 128), jnp.int32)
    y = jax.ShapeDtypeStruct((384, 512), jnp.dtype(dtype))
    report = pallas_compile(blackwell_sparse_matmul, values, pairs, y, target="b200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()
