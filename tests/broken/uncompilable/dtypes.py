"""Dtypes that a TPU, or one generation of them, lacks."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax.experimental import pallas as pl

from uncompilable.common import TPUS, Case, Shape, X, add_itself, matmul


def first_lane(x):
    def squeeze(x_ref, o_ref):
        o_ref[...] = x_ref[:, 0]

    return pl.pallas_call(squeeze, out_shape=Shape((8,), x.dtype))(x)


def cast_between_float8(x):
    def cast(x_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.float8_e5m2)

    return pl.pallas_call(cast, out_shape=Shape(x.shape, jnp.float8_e5m2))(x)


def _square(dtype):
    return (Shape((128, 128), dtype),) * 2


FLOAT8 = "f8E4M3FN[128,128]"

CASES = (
    Case(
        "float8_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float8_e4m3fn),
        "tpu",
        ("v4",),
        ("Unsupported matmul RHS type on target", FLOAT8, "tpu.matmul", "jnp.dot(x_ref[...]"),
    ),
    Case(
        "int8_matmul",
        functools.partial(matmul, jnp.int32),
        _square(jnp.int8),
        "tpu",
        ("v4",),
        ("Unsupported matmul RHS type on target", "i8[128,128]", "jnp.dot(x_ref[...]"),
    ),
    Case(
        "float8_b11_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float8_e4m3b11fnuz),
        "tpu",
        ("v4", "tpu7x"),  # it was the float8 of the generations between
        ("f8E4M3B11FNUZ[", "tpu.matmul", "jnp.dot(x_ref[...]"),
    ),
    Case(
        "float16_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float16),
        "tpu",
        TPUS,
        ("f16[128,128] in VMEM", "jnp.dot(x_ref[...]"),
    ),
    Case(
        "int8_add",
        add_itself,
        (Shape((64, 256), jnp.int8),),
        "tpu",
        TPUS,
        ("Only i16 and i32 are supported, but got 'i8'", "= x_ref[...] + x_ref[...]"),
    ),
    Case(
        "complex",
        add_itself,
        (Shape((8, 128), jnp.complex64),),
        "tpu",
        TPUS,
        ("Invalid type", "x_ref c64[8,128]", "= x_ref[...] + x_ref[...]"),
    ),
    Case(
        "cast_between_float8",
        cast_between_float8,
        (Shape((32, 128), jnp.float8_e4m3fn),),
        "tpu",
        TPUS,
        ("Unsupported cast: float8_e4m3fn -> float8_e5m2", ".astype(jnp.float8_e5m2)"),
    ),
    Case(
        "first_lane",
        first_lane,
        (X,),
        "tpu",
        ("v4",),
        ("Sublane gather not supported by this TPU generation", "x_ref[:, 0]"),
    ),
)
