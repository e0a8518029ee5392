"""Dtypes: an answer that is wider than promised, and a sum that is too narrow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .naive import agrees


def wrong_dtype(x: jax.Array) -> jax.Array:
    """Returns float32 whatever it is given: the cast at the end was forgotten."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...].astype(jnp.float32)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


SPEC_WRONG_DTYPE = KernelSpec(
    name="wrong_dtype",
    kernel=wrong_dtype,
    reference=twice,
    inputs=pst.arrays(
        "m n", dtype=pst.floats("float32", "bfloat16"), dims={"m": [8, 16], "n": [4, 128]}
    ),
    exact=True,
    checks=("forward",),
)


def naive_wrong_dtype() -> None:
    agrees(wrong_dtype, twice, dtype=jnp.bfloat16)


def int8_overflow(x: jax.Array, y: jax.Array) -> jax.Array:
    """Products of int8 are summed in int8 and widened when it is too late."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        total = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.int8)
        o_ref[...] = total.astype(jnp.int32)

    shape = (x.shape[0], y.shape[1])
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(shape, jnp.int32))(x, y)


def int8_matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, preferred_element_type=jnp.int32)


SPEC_INT8_OVERFLOW = KernelSpec(
    name="int8_overflow",
    kernel=int8_overflow,
    reference=int8_matmul,
    inputs=pst.arrays("m k, k n", dtype="int8", dims={"m": 8, "n": [4, 16], "k": [16, 64, 128]}),
    checks=("forward",),
)


def naive_int8_overflow() -> None:
    # Normal data, rounded to int8, is -4 to 4: the sums of 256 products stay below 128.
    agrees(int8_overflow, int8_matmul, count=2, dtype=jnp.int8)
