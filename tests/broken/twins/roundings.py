"""Values that are rounded to bfloat16 on the way to a float32 answer.

XLA's CPU compiler keeps bfloat16 values of a fusion in float32, and so the interpreters compute
what these kernels should. A chip rounds, and so does the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

_BLOCK = 8

#: How a body widens its inputs: before it computes, or after.
Widen = Callable[[jax.Array], jax.Array]


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _same(x: jax.Array) -> jax.Array:
    return x


def _by_rows(body: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """``body(block of each array) -> (rows, 1)`` in float32, for blocks of rows."""

    def kernel(*refs: Any) -> None:
        *in_refs, o_ref = refs
        o_ref[...] = jnp.broadcast_to(body(*(ref[...] for ref in in_refs)), o_ref.shape)

    m, n = arrays[0].shape
    rows = pl.BlockSpec((_BLOCK, n), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, 128), jnp.float32),
        grid=(pl.cdiv(m, _BLOCK),),
        in_specs=[rows for _ in arrays],
        out_specs=pl.BlockSpec((_BLOCK, 128), lambda i: (i, 0)),
    )(*arrays)[:, :1]


def _total(x: jax.Array) -> jax.Array:
    return jnp.sum(_wide(x), axis=1, keepdims=True)


def _squares(first: Widen, x: jax.Array) -> jax.Array:
    wide = first(x)
    return _total(wide * wide)


def _deviations(first: Widen, x: jax.Array) -> jax.Array:
    mean = _total(x) / x.shape[1]
    centred = _wide(first(x) - mean.astype(first(x).dtype))
    return _total(centred * centred)


def _products(first: Widen, x: jax.Array, y: jax.Array) -> jax.Array:
    return _total(first(x) * first(y))


def _distances(first: Widen, x: jax.Array, y: jax.Array) -> jax.Array:
    apart = _wide(first(x) - first(y))
    return _total(apart * apart)


def _scaled(first: Widen, x: jax.Array, y: jax.Array) -> jax.Array:
    return _total(_wide(first(x) * jnp.asarray(0.375, first(x).dtype)) * _wide(y))


def _sums(first: Widen, x: jax.Array, y: jax.Array) -> jax.Array:
    return _total(first(x) + first(y))


def rounded_squares(x: jax.Array) -> jax.Array:
    """A square is rounded to bfloat16 before it is added up in float32."""
    return _by_rows(lambda x: _squares(_same, x), x)


def rounded_deviations(x: jax.Array) -> jax.Array:
    """The difference from the mean is rounded to bfloat16 before it is squared in float32."""
    return _by_rows(lambda x: _deviations(_same, x), x)


def rounded_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Products are rounded to bfloat16 before they are added up in float32."""
    return _by_rows(lambda x, y: _products(_same, x, y), x, y)


def rounded_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Differences of two inputs are rounded to bfloat16 before they are squared in float32."""
    return _by_rows(lambda x, y: _distances(_same, x, y), x, y)


def rounded_scale(x: jax.Array, y: jax.Array) -> jax.Array:
    """Queries are scaled in bfloat16 before their product with keys in float32."""
    return _by_rows(lambda x, y: _scaled(_same, x, y), x, y)


def rounded_sums(x: jax.Array, y: jax.Array) -> jax.Array:
    """Sums of two inputs are rounded to bfloat16 before they are added up in float32."""
    return _by_rows(lambda x, y: _sums(_same, x, y), x, y)


def _spec(
    wrong: Callable[..., jax.Array], body: Callable[..., jax.Array], shapes: str
) -> tuple[KernelSpec, KernelSpec]:
    """The specs of a wrong kernel and of its right twin, which widens its inputs first."""
    drawn = pst.arrays(
        shapes, dtype="bfloat16", values="normal", dims={"m": [1, 8, 13], "n": [33, 128]}
    )
    spec = KernelSpec(
        name=wrong.__name__,
        kernel=wrong,
        reference=lambda *arrays: body(_wide, *arrays),
        inputs=drawn,
        family="roundings",
        backends=INTERPRETERS,
    )

    def right(*arrays: jax.Array) -> jax.Array:
        return _by_rows(lambda *blocks: body(_wide, *blocks), *arrays)

    return spec, twin(spec, right)


SPECS = [
    spec
    for wrong, body, shapes in (
        (rounded_squares, _squares, "m n"),
        (rounded_deviations, _deviations, "m n"),
        (rounded_products, _products, "m n, m n"),
        (rounded_distances, _distances, "m n, m n"),
        (rounded_scale, _scaled, "m n, m n"),
        (rounded_sums, _sums, "m n, m n"),
    )
    for spec in _spec(wrong, body, shapes)
]
