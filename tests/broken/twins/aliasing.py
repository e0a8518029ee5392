"""Outputs that live in the memory of inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def shift(x: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """x ``(m, n)`` moved down by a block of rows; the first block stays."""
    m, n = x.shape
    last = m // block - 1

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def source(i: Any) -> tuple[Any, int]:
        return jnp.maximum(last - i - 1, 0), 0

    def target(i: Any) -> tuple[Any, int]:
        return last - i, 0

    if wrong:  # from the top, where each block has been overwritten when it is read

        def source(i: Any) -> tuple[Any, int]:
            return jnp.maximum(i - 1, 0), 0

        def target(i: Any) -> tuple[Any, int]:
            return i, 0

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(last + 1,),
        in_specs=[pl.BlockSpec((block, n), source)],
        out_specs=pl.BlockSpec((block, n), target),
        input_output_aliases={0: 0},
    )(x)


def shift_reference(x: jax.Array, *, block: int = 8) -> jax.Array:
    return jnp.concatenate([x[:block], x[:-block]])


def shifted_from_the_top(x: jax.Array, *, block: int = 8) -> jax.Array:
    """In place, a block is read after the one before was copied over it."""
    return shift(x, block=block, wrong="from the top")


SPEC_SHIFTED_FROM_THE_TOP = KernelSpec(
    name="shifted_from_the_top",
    kernel=shifted_from_the_top,
    reference=shift_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 24, 32], "n": [4, 128]}),
        options={"block": 8},
    ),
    exact=True,
    vmappable=False,
    family="aliasing",
    backends=INTERPRETERS,
)
SPEC_SHIFTED_FROM_THE_TOP_RIGHT = twin(SPEC_SHIFTED_FROM_THE_TOP, shift)


def padded_mean(x: jax.Array, lengths: jax.Array, *, wrong: str = "") -> jax.Array:
    """The mean of the first ``lengths[i, 0]`` elements of each row of x ``(m, n)``."""

    def body(x_ref: Any, length_ref: Any, o_ref: Any) -> None:
        length = length_ref[...]
        inside = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1) < length
        x = jnp.where(inside, x_ref[...], 0)
        if wrong:
            x_ref[...] = x
        o_ref[...] = jnp.sum(x, axis=1, keepdims=True) / jnp.maximum(length, 1).astype(x.dtype)

    shape = jax.ShapeDtypeStruct((len(x), 1), x.dtype)
    return pl.pallas_call(body, out_shape=shape)(x, lengths[:, None])


def padded_mean_reference(x: jax.Array, lengths: jax.Array) -> jax.Array:
    inside = jnp.arange(x.shape[1]) < lengths[:, None]
    total = jnp.sum(jnp.where(inside, x, 0), axis=1, keepdims=True)
    return total / jnp.maximum(lengths, 1)[:, None].astype(x.dtype)


def padded_in_place(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Zeros are written into the input behind each sequence, before it is summed."""
    return padded_mean(x, lengths, wrong="in place")


SPEC_PADDED_IN_PLACE = KernelSpec(
    name="padded_in_place",
    kernel=padded_in_place,
    reference=padded_mean_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [1, 8], "n": [7, 16]}),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["m"], max_length=drawn.recipe["n"])
        },
    ),
    vmappable=False,
    family="aliasing",
    backends=INTERPRETERS,
)
SPEC_PADDED_IN_PLACE_RIGHT = twin(SPEC_PADDED_IN_PLACE, padded_mean)
