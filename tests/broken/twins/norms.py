"""Normalisations and reductions along rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

_EPSILON = 1e-6


def _by_rows(body: Any, block: int, *arrays: jax.Array) -> jax.Array:
    """``body(block of each array) -> block of the result``, for blocks of rows."""

    def kernel(*refs: Any) -> None:
        *in_refs, o_ref = refs
        o_ref[...] = body(*(ref[...] for ref in in_refs))

    x = arrays[0]
    rows = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    row = pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(len(x), block),),
        in_specs=[rows, *(row for _ in arrays[1:])],
        out_specs=rows,
    )(*arrays)


def layer_norm(x: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """Each row of x ``(m, n)`` without its mean, divided by its standard deviation."""

    def body(x: jax.Array) -> jax.Array:
        mean = jnp.mean(x, axis=1, keepdims=True)
        if wrong == "variance of squares":
            variance = jnp.mean(x * x, axis=1, keepdims=True) - mean * mean
        else:
            variance = jnp.mean((x - mean) ** 2, axis=1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + _EPSILON)

    return _by_rows(body, block, x)


def layer_norm_reference(x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=1, keepdims=True) + _EPSILON)


def _away_from_zero(drawn: pst.Drawn) -> pst.Drawn:
    """The same around 1000, as activations with a bias are."""
    return pst.Drawn([x + 1000 for x in drawn], {**drawn.recipe, "plus": 1000})


def variance_of_squares(x: jax.Array, *, block: int = 8) -> jax.Array:
    """The variance is the mean of squares minus the square of the mean, which cancel."""
    return layer_norm(x, block=block, wrong="variance of squares")


SPEC_VARIANCE_OF_SQUARES = KernelSpec(
    name="variance_of_squares",
    kernel=variance_of_squares,
    reference=layer_norm_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n", dtype="float32", values="normal", dims={"m": [8, 13], "n": [16, 128]}
        ).map(_away_from_zero),
        tuning={"block": 8},
    ),
    family="norms and reductions",
    backends=INTERPRETERS,
)
SPEC_VARIANCE_OF_SQUARES_RIGHT = twin(SPEC_VARIANCE_OF_SQUARES, layer_norm)


def rms_norm(x: jax.Array, weight: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """Each row of x ``(m, n)`` divided by its root mean square, times ``weight (1, n)``."""

    def body(x: jax.Array, weight: jax.Array) -> jax.Array:
        wide = x if wrong == "narrow squares" else x.astype(jnp.float32)
        squares = wide * wide
        if wrong == "narrow squares":  # one by one, as the dtype of the sum would have it
            total = jnp.zeros_like(squares[:, :1])
            for column in range(x.shape[1]):
                total = total + squares[:, column : column + 1]
            mean = (total / x.shape[1]).astype(jnp.float32)
        else:
            mean = jnp.mean(squares, axis=1, keepdims=True)
        if wrong == "epsilon outside":
            scale = 1 / (jnp.sqrt(mean) + _EPSILON)
        else:
            scale = jax.lax.rsqrt(mean + _EPSILON)
        return (x.astype(jnp.float32) * scale * weight.astype(jnp.float32)).astype(x.dtype)

    return _by_rows(body, block, x, weight)


def rms_norm_reference(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=1, keepdims=True) + _EPSILON)
    return (wide * scale * weight.astype(wide.dtype)).astype(x.dtype)


def _rms_norm_calls(dtype: str) -> Any:
    return pst.arguments(
        pst.arrays("m n, 1 n", dtype=dtype, dims={"m": [8, 13], "n": [1, 16, 128]}),
        tuning={"block": 8},
    )


def narrow_squares(x: jax.Array, weight: jax.Array, *, block: int = 8) -> jax.Array:
    """Squares are summed in the dtype of the input, bfloat16."""
    return rms_norm(x, weight, block=block, wrong="narrow squares")


SPEC_NARROW_SQUARES = KernelSpec(
    name="narrow_squares",
    kernel=narrow_squares,
    reference=rms_norm_reference,
    inputs=_rms_norm_calls("bfloat16"),
    family="norms and reductions",
    backends=INTERPRETERS,
)
SPEC_NARROW_SQUARES_RIGHT = twin(SPEC_NARROW_SQUARES, rms_norm)


def epsilon_outside(x: jax.Array, weight: jax.Array, *, block: int = 8) -> jax.Array:
    """Epsilon is added to the root, and not under it."""
    return rms_norm(x, weight, block=block, wrong="epsilon outside")


SPEC_EPSILON_OUTSIDE = KernelSpec(
    name="epsilon_outside",
    kernel=epsilon_outside,
    reference=rms_norm_reference,
    inputs=_rms_norm_calls("float32"),
    family="norms and reductions",
    backends=INTERPRETERS,
)


def softmax(x: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """Softmax of each row of x ``(m, n)``."""

    def body(x: jax.Array) -> jax.Array:
        top = 0 if wrong == "no maximum" else jnp.max(x, axis=1, keepdims=True)
        weights = jnp.exp(x - top)
        return weights / jnp.sum(weights, axis=1, keepdims=True)

    return _by_rows(body, block, x)


def softmax_reference(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=1)


def no_maximum(x: jax.Array, *, block: int = 8) -> jax.Array:
    """Softmax without the maximum subtracted, which overflows for scores above 88."""
    return softmax(x, block=block, wrong="no maximum")


SPEC_NO_MAXIMUM = KernelSpec(
    name="no_maximum",
    kernel=no_maximum,
    reference=softmax_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n", dtype="float32", values=("normal", "wide"), dims={"m": [8, 13], "n": [7, 16]}
        ),
        tuning={"block": 8},
    ),
    family="norms and reductions",
    backends=INTERPRETERS,
)
SPEC_NO_MAXIMUM_RIGHT = twin(SPEC_NO_MAXIMUM, softmax)


def argmax(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """The first place of the maximum of each row of x ``(m, n)``, int32 ``(m, 1)``."""
    n = x.shape[1]

    def body(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        top = jnp.max(x, axis=1, keepdims=True)
        place = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
        if wrong:
            o_ref[...] = jnp.max(jnp.where(x == top, place, -1), axis=1, keepdims=True)
        else:
            o_ref[...] = jnp.min(jnp.where(x == top, place, n), axis=1, keepdims=True)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((len(x), 1), jnp.int32))(x)


def argmax_reference(x: jax.Array) -> jax.Array:
    return jnp.argmax(x, axis=1, keepdims=True).astype(jnp.int32)


def last_of_equals(x: jax.Array) -> jax.Array:
    """Of equal maxima the last one is taken, not the first."""
    return argmax(x, wrong="last of equals")


SPEC_LAST_OF_EQUALS = KernelSpec(
    name="last_of_equals",
    kernel=last_of_equals,
    reference=argmax_reference,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 13], "n": [7, 16]}),
    family="norms and reductions",
    backends=INTERPRETERS,
)
SPEC_LAST_OF_EQUALS_RIGHT = twin(SPEC_LAST_OF_EQUALS, argmax)


def cross_entropy(
    logits: jax.Array, labels: jax.Array, *, block: int = 8, wrong: str = ""
) -> jax.Array:
    """``logsumexp(row) - row[label]`` for each row of logits ``(m, n)``, by blocks of columns."""
    m, n = logits.shape

    def body(x_ref: Any, label_ref: Any, o_ref: Any, m_ref: Any, l_ref: Any, t_ref: Any) -> None:
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _clear() -> None:
            m_ref[...] = jnp.full_like(m_ref, -1e30)
            l_ref[...] = jnp.zeros_like(l_ref)
            t_ref[...] = jnp.zeros_like(t_ref)

        here = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        column = step * block + here
        x = jnp.where(column < n, x_ref[...], -1e30)
        top = jnp.maximum(m_ref[...], jnp.max(x, axis=1, keepdims=True))
        total = jnp.sum(jnp.exp(x - top), axis=1, keepdims=True)
        l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - top) + total
        m_ref[...] = top
        number = here if wrong == "label in block" else column
        is_label = (number == label_ref[...]) & (column < n)
        t_ref[...] += jnp.sum(jnp.where(is_label, x, 0), axis=1, keepdims=True)

        @pl.when(step == pl.num_programs(0) - 1)
        def _store() -> None:
            o_ref[...] = m_ref[...] + jnp.log(l_ref[...]) - t_ref[...]

    column = pl.BlockSpec((m, 1), lambda step: (0, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, 1), logits.dtype),
        grid=(pl.cdiv(n, block),),
        in_specs=[pl.BlockSpec((m, block), lambda step: (0, step)), column],
        out_specs=column,
        scratch_shapes=[pltpu.VMEM((m, 1), jnp.float32) for _ in range(3)],
    )(logits, labels[:, None])


def cross_entropy_reference(logits: jax.Array, labels: jax.Array) -> jax.Array:
    target = jnp.take_along_axis(logits, labels[:, None], axis=1)
    return jax.nn.logsumexp(logits, axis=1, keepdims=True) - target


def label_in_block(logits: jax.Array, labels: jax.Array, *, block: int = 8) -> jax.Array:
    """The label is compared with the column in its block, not in the row."""
    return cross_entropy(logits, labels, block=block, wrong="label in block")


SPEC_LABEL_IN_BLOCK = KernelSpec(
    name="label_in_block",
    kernel=label_in_block,
    reference=cross_entropy_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [1, 8], "n": [7, 16, 21]}),
        then=lambda drawn: {"labels": pst.indices(drawn.recipe["m"], size=drawn.recipe["n"])},
        tuning={"block": 8},
    ),
    vmappable=False,
    family="norms and reductions",
    backends=INTERPRETERS,
)
SPEC_LABEL_IN_BLOCK_RIGHT = twin(SPEC_LABEL_IN_BLOCK, cross_entropy)
