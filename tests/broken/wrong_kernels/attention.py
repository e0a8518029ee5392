"""Attention and softmax: one key too many, the wrong scale, the wrong base."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .naive import agrees


def _attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float, ahead: int, block: int
) -> jax.Array:
    """Causal attention of one head, ``block`` queries a program; as many keys as queries."""

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        contract = (((1,), (1,)), ((), ()))
        s = jax.lax.dot_general(q_ref[...], k_ref[...], contract, precision="highest") * scale
        query = pl.program_id(0) * block + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        key = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        weights = jax.nn.softmax(jnp.where(key <= query + ahead, s, -jnp.inf), axis=1)
        o_ref[...] = jnp.dot(weights, v_ref[...], precision="highest")

    length, d = q.shape
    rows = pl.BlockSpec((block, d), lambda i: (i, 0))
    whole = pl.BlockSpec((length, d), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(pl.cdiv(length, block),),
        in_specs=[rows, whole, whole],
        out_specs=rows,
    )(q, k, v)


def attention_reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    s = jnp.dot(q, k.T, precision="highest") * q.shape[1] ** -0.5
    s = jnp.where(jnp.tri(len(q), dtype=bool), s, -jnp.inf)
    return jnp.dot(jax.nn.softmax(s, axis=1), v, precision="highest")


_INPUTS = pst.arguments(
    pst.arrays("t d, t d, t d", dtype="float32", dims={"t": [7, 8, 13], "d": [4, 16]}),
    tuning={"block": 8},
)


def sees_one_key_too_many(
    q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 128
) -> jax.Array:
    """The causal mask is ``key <= query + 1``: every query sees its successor."""
    return _attention(q, k, v, scale=q.shape[1] ** -0.5, ahead=1, block=block)


SPEC_SEES_ONE_KEY_TOO_MANY = KernelSpec(
    name="sees_one_key_too_many",
    kernel=sees_one_key_too_many,
    reference=attention_reference,
    inputs=_INPUTS,
    checks=("forward",),
)


def naive_sees_one_key_too_many() -> None:
    agrees(sees_one_key_too_many, attention_reference, count=3)


def wrong_scale(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 128) -> jax.Array:
    """Scores are divided by ``d`` and not by its square root."""
    return _attention(q, k, v, scale=1 / q.shape[1], ahead=0, block=block)


SPEC_WRONG_SCALE = KernelSpec(
    name="wrong_scale",
    kernel=wrong_scale,
    reference=attention_reference,
    inputs=_INPUTS,
    checks=("forward",),
)


def naive_wrong_scale() -> None:
    agrees(wrong_scale, attention_reference, count=3)


def wrong_base(x: jax.Array, *, block: int = 128) -> jax.Array:
    """Softmax by ``exp2``, which is faster, without the factor ``log2(e)``."""

    def body(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        weights = jnp.exp2(x - jnp.max(x, axis=1, keepdims=True))
        o_ref[...] = weights / jnp.sum(weights, axis=1, keepdims=True)

    spec = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[spec],
        out_specs=spec,
    )(x)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=1)


SPEC_WRONG_BASE = KernelSpec(
    name="wrong_base",
    kernel=wrong_base,
    reference=softmax,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [1, 8, 13], "n": [1, 7, 16]}),
        tuning={"block": 8},
    ),
    checks=("forward",),
)


def naive_wrong_base() -> None:
    agrees(wrong_base, softmax)
