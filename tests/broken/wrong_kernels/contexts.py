"""Right where a kernel is usually tested, under jit with its tuning; wrong somewhere else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .contracts import right
from .naive import agrees

_ARRAYS = pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [4, 128]}, values="normal")


def weak_scale(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns its scale too, as a weakly typed number: it never promotes what it multiplies."""
    return right(x), jnp.asarray(2.0)


def twice_and_scale(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return twice(x), jnp.float32(2)


SPEC_WEAK_SCALE = KernelSpec(
    name="weak_scale", kernel=weak_scale, reference=twice_and_scale, inputs=_ARRAYS
)


def naive_weak_scale() -> None:
    agrees(lambda x: weak_scale(x)[0], twice)
    agrees(lambda x: weak_scale(x)[1], lambda x: twice_and_scale(x)[1])


def shorter_when_eager(x: jax.Array) -> jax.Array:
    """Leaves out rows of zeros at the end where it can see them, and one row more."""
    used = x.shape[0]
    if not isinstance(x, jax.core.Tracer):
        used = int(np.flatnonzero(np.asarray(x).any(axis=1)).max(initial=0))  # + 1 is missing

    def body(x_ref: Any, o_ref: Any) -> None:
        rows = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        o_ref[...] = jnp.where(rows < used, 2 * x_ref[...], 0)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


SPEC_SHORTER_WHEN_EAGER = KernelSpec(
    name="shorter_when_eager", kernel=shorter_when_eager, reference=twice, inputs=_ARRAYS
)


def naive_shorter_when_eager() -> None:
    agrees(shorter_when_eager, twice)


def calls_the_host(x: jax.Array) -> jax.Array:
    """Gets its factor from numpy on the host: no other process can run what was compiled."""
    factor = jax.pure_callback(
        lambda: np.full((1, 1), 2, np.float32), jax.ShapeDtypeStruct((1, 1), jnp.float32)
    )

    def body(factor_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = factor_ref[...] * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(factor, x)


SPEC_CALLS_THE_HOST = KernelSpec(
    name="calls_the_host", kernel=calls_the_host, reference=twice, inputs=_ARRAYS, vmappable=False
)


def naive_calls_the_host() -> None:
    agrees(calls_the_host, twice)


def default_block_drops_tail(x: jax.Array, *, block_rows: int = 16) -> jax.Array:
    """Runs as many blocks as fit: right for the blocks of 8 that are tested, not for its own."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    spec = pl.BlockSpec((block_rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // block_rows,),
        in_specs=[spec],
        out_specs=spec,
    )(x)


SPEC_DEFAULT_BLOCK_DROPS_TAIL = KernelSpec(
    name="default_block_drops_tail",
    kernel=default_block_drops_tail,
    reference=twice,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [24, 40], "n": [4, 128]}),
        tuning={"block_rows": 8},
    ),
)


def naive_default_block_drops_tail() -> None:
    agrees(default_block_drops_tail, twice)


def fades_by_row(x: jax.Array) -> jax.Array:
    """Divides each row by its number, and takes that from its own part of the array."""

    def body(x_ref: Any, o_ref: Any) -> None:
        row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        o_ref[...] = x_ref[...] / (1 + row).astype(x_ref.dtype)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def faded(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.arange(x.shape[0])[:, None]).astype(x.dtype)


SPEC_FADES_BY_ROW = KernelSpec(
    name="fades_by_row", kernel=fades_by_row, reference=faded, inputs=_ARRAYS, batch_axes=(0,)
)


def naive_fades_by_row() -> None:
    agrees(fades_by_row, faded)
