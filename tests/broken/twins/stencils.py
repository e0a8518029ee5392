"""Differences along a closed curve, ``o[t] = x[t] - x[t - 1]``: the first row follows the last."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def differences(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """Each row of x ``(n, d)`` less the row before it.

    Args:
      x: the rows.
      wrong: the mistake.
    """
    count = x.shape[0]

    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.loop(0, count)
        def _row(t: Any) -> None:
            before = t - 1 if wrong else jax.lax.rem(t + (count - 1), count)
            o_ref[pl.ds(t, 1)] = x_ref[pl.ds(t, 1)] - x_ref[pl.ds(before, 1)]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def reference(x: jax.Array) -> jax.Array:
    return x - jnp.roll(x, 1, axis=0)


def last_for_minus_one(x: jax.Array) -> jax.Array:
    """Before the first row is row -1, which is the last one in numpy, and not in a ref."""
    return differences(x, wrong="no modulus")


SPEC_LAST_FOR_MINUS_ONE = KernelSpec(
    name="last_for_minus_one",
    kernel=last_for_minus_one,
    reference=reference,
    inputs=pst.arrays("n d", dtype="float32", dims={"n": [2, 8, 9], "d": [4, 128]}),
    family="stencils",
    backends=INTERPRETERS,
)
SPEC_LAST_FOR_MINUS_ONE_RIGHT = twin(SPEC_LAST_FOR_MINUS_ONE, differences)
