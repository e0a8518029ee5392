"""Narrow integers with scales."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def there_and_back(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """x ``(m, n)`` as whole multiples of the scale of its row, of which the greatest is 127."""

    def body(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        scale = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
        if wrong != "scale of zeros":
            scale = jnp.where(scale == 0, 1.0, scale)
        o_ref[...] = jnp.round(x / scale) * scale

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def there_and_back_reference(x: jax.Array) -> jax.Array:
    scale = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
    scale = jnp.where(scale == 0, 1.0, scale).astype(x.dtype)
    return jnp.round(x / scale) * scale


def scale_of_zeros(x: jax.Array) -> jax.Array:
    """A row of zeros has the scale 0, and is divided by it."""
    return there_and_back(x, wrong="scale of zeros")


SPEC_SCALE_OF_ZEROS = KernelSpec(
    name="scale_of_zeros",
    kernel=scale_of_zeros,
    reference=there_and_back_reference,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [1, 8], "n": [7, 16]}),
    family="quantised",
    backends=INTERPRETERS,
)
SPEC_SCALE_OF_ZEROS_RIGHT = twin(SPEC_SCALE_OF_ZEROS, there_and_back)


def requantise(x: jax.Array, scale: jax.Array, *, wrong: str = "") -> jax.Array:
    """int32 sums x ``(m, n)`` times ``scale (1, 1)``, a power of two, as int8: what is too large
    becomes 127 or -128."""

    def body(x_ref: Any, scale_ref: Any, o_ref: Any) -> None:
        scaled = jnp.round(x_ref[...].astype(jnp.float32) * scale_ref[...]).astype(jnp.int32)
        if wrong != "not clipped":
            scaled = jnp.clip(scaled, -128, 127)
        o_ref[...] = scaled.astype(jnp.int8)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.int8))(x, scale)


def requantise_reference(x: jax.Array, scale: jax.Array) -> jax.Array:
    return jnp.clip(jnp.round(x.astype(scale.dtype) * scale), -128, 127).astype(jnp.int8)


def _quarter(drawn: pst.Drawn) -> pst.Drawn:
    """Sums of products of int8, and the scale that a typical one needs."""
    x, scale = drawn
    return pst.Drawn([x % 2000 - 1000, 0 * scale + 0.25], {**drawn.recipe, "scale": 0.25})


def not_clipped(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Sums that do not fit in int8 wrap around."""
    return requantise(x, scale, wrong="not clipped")


SPEC_NOT_CLIPPED = KernelSpec(
    name="not_clipped",
    kernel=not_clipped,
    reference=requantise_reference,
    inputs=pst.arrays("m n, 1 1", dtype=["int32", "float32"], dims={"m": [1, 8], "n": [7, 16]}).map(
        _quarter
    ),
    family="quantised",
    backends=INTERPRETERS,
)
SPEC_NOT_CLIPPED_RIGHT = twin(SPEC_NOT_CLIPPED, requantise)


def int4_matmul(x: jax.Array, packed: jax.Array, scale: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x @ (w * scale)``: w is int4 ``(k, n)``, rows 2 i and 2 i + 1 in the low and high half of
    ``packed[i]``, int8, and ``scale (1, n)`` belongs to its columns."""

    def body(x_ref: Any, packed_ref: Any, scale_ref: Any, o_ref: Any) -> None:
        both = packed_ref[...].astype(jnp.int32)
        high = both >> 4
        low = both & 15
        if wrong != "unsigned half":
            low = jnp.where(low < 8, low, low - 16)
        w = jnp.stack([low, high], axis=1).reshape(x_ref.shape[1], -1).astype(jnp.float32)
        o_ref[...] = jnp.dot(x_ref[...], w, precision="highest") * scale_ref[...]

    shape = (len(x), packed.shape[1])
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(shape, x.dtype))(x, packed, scale)


def int4_matmul_reference(x: jax.Array, packed: jax.Array, scale: jax.Array) -> jax.Array:
    halves = [jax.lax.shift_right_arithmetic(packed << 4, jnp.int8(4)), packed >> 4]
    w = jnp.stack(halves, axis=1).reshape(x.shape[1], -1).astype(x.dtype)
    return jnp.dot(x, w, precision="highest") * scale


def unsigned_half(x: jax.Array, packed: jax.Array, scale: jax.Array) -> jax.Array:
    """The lower int4 of a byte is taken for 0 to 15: its sign is not extended."""
    return int4_matmul(x, packed, scale, wrong="unsigned half")


SPEC_UNSIGNED_HALF = KernelSpec(
    name="unsigned_half",
    kernel=unsigned_half,
    reference=int4_matmul_reference,
    inputs=pst.arrays(
        "m k, h n, 1 n; k = 2*h",
        dtype=["float32", "int8", "float32"],
        dims={"m": [1, 8], "h": [1, 4], "n": [7, 16]},
    ),
    family="quantised",
    backends=INTERPRETERS,
)
SPEC_UNSIGNED_HALF_RIGHT = twin(SPEC_UNSIGNED_HALF, int4_matmul)


def dequantise(x: jax.Array, scale: jax.Array, *, wrong: str = "") -> jax.Array:
    """int8 x ``(m, k)`` times the scale of each group of columns, ``scale (m, k / 4)``."""

    def body(x_ref: Any, scale_ref: Any, o_ref: Any) -> None:
        scale = scale_ref[...]
        if wrong == "groups in turns":
            wide = jnp.concatenate([scale] * 4, axis=1)
        else:
            wide = jnp.repeat(scale, 4, axis=1)
        o_ref[...] = x_ref[...].astype(scale.dtype) * wide

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, scale.dtype))(x, scale)


def dequantise_reference(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x.astype(scale.dtype) * jnp.repeat(scale, 4, axis=1)


def groups_in_turns(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Columns take the scales of the groups in turns, not four by four."""
    return dequantise(x, scale, wrong="groups in turns")


SPEC_GROUPS_IN_TURNS = KernelSpec(
    name="groups_in_turns",
    kernel=groups_in_turns,
    reference=dequantise_reference,
    inputs=pst.arrays(
        "m k, m g; k = 4*g",
        dtype=["int8", "float32"],
        dims={"m": [1, 8], "g": [1, 3]},
    ),
    family="quantised",
    backends=INTERPRETERS,
)
SPEC_GROUPS_IN_TURNS_RIGHT = twin(SPEC_GROUPS_IN_TURNS, dequantise)
