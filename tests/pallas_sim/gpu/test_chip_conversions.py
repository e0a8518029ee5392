"""Conversions to float8 in kernels. What an H200 gave is in test_chip_products.py."""

from __future__ import annotations

from typing import Any

import chip_record
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_sim import simulate

NARROW = ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("mosaic", [False, True])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_what_is_too_large_saturates(source: str, dtype: str, mosaic: bool) -> None:
    """PTX ISA, ``cvt.satfinite``: infinities become the largest number, too; NaN stays."""
    x = np.array([np.inf, -np.inf, 60000, -60000, np.nan, 1, *[0.0] * 122]).astype(source)
    largest = float(ml_dtypes.finfo(dtype).max)
    kernel = chip_record.convert(dtype, mosaic=mosaic)
    found = np.asarray(simulate(kernel, x, target="h200").values).astype(np.float32)
    assert found[:4].tolist() == [largest, -largest, largest, -largest]
    assert np.isnan(found[4])
    assert found[5:].tolist() == [1, *[0] * 122]


@pytest.mark.parametrize("target", ["h200", "v6e"])
def test_elsewhere_as_jax_converts(target: str) -> None:
    """Outside of kernels, and on TPUs."""
    x = np.full(256, 1e6, np.float32)

    def convert(x: Any) -> Any:
        inside = x if target == "h200" else chip_record.convert(jnp.float8_e4m3fn)(x)
        return inside.astype(jnp.float8_e4m3fn)

    assert np.isnan(np.asarray(simulate(convert, x, target=target).values, np.float32)).all()
