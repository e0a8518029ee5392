"""Conversions to float8 in kernels: what an H200 gave for every finite bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.simulator import simulate

#: ``x``: the bits of every finite bfloat16; by dtype, those of the float8 that an H200 made of it
#: (2026-11-26, JAX 0.11.2, driver 580), the same for Mosaic GPU and the Triton route.
RECORD = Path(__file__).with_name("h200_conversions.npz")

NARROW = ["float8_e4m3fn", "float8_e5m2"]


def by_triton(x: Any, dtype: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...].astype(dtype)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, dtype))(x)


def by_mosaic(x: Any, dtype: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...].astype(dtype)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, dtype))(x)


@pytest.mark.parametrize("route", [by_triton, by_mosaic])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_float8_of_an_h200(route: Any, dtype: str, source: str) -> None:
    with np.load(RECORD) as record:
        x, wanted = record["x"].view(ml_dtypes.bfloat16).astype(source), record[dtype]
    count = wanted.size
    x = np.append(x, np.zeros(2**16 - count, x.dtype))  # Triton wants a power of two
    values = simulate(lambda x: route(x, jnp.dtype(dtype)), x, target="h200").values
    assert (np.asarray(values).view(np.uint8)[:count] == wanted).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_not_finite(dtype: str) -> None:
    """PTX ISA, ``cvt.satfinite``: infinities become the largest number, NaN stays."""
    x = np.float32([np.inf, -np.inf, np.nan, *[0.0] * 253])
    largest = float(ml_dtypes.finfo(dtype).max)
    values = simulate(lambda x: by_triton(x, jnp.dtype(dtype)), x, target="h200").values
    found = np.asarray(values).astype(np.float32)
    assert found[:2].tolist() == [largest, -largest]
    assert np.isnan(found[2])


@pytest.mark.parametrize("target", ["h200", "v6e"])
def test_elsewhere_as_jax_converts(target: str) -> None:
    """Outside of kernels, and on TPUs."""
    x = np.full(256, 1e6, np.float32)

    def convert(x: Any) -> Any:
        inside = x if target == "h200" else by_triton(x, jnp.float8_e4m3fn)
        return inside.astype(jnp.float8_e4m3fn)

    assert np.isnan(np.asarray(simulate(convert, x, target=target).values, np.float32)).all()
