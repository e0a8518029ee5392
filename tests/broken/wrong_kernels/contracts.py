"""What a kernel promises besides its answer: its gradient, its inputs, that it is a kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .naive import agrees

_ARRAYS = pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [4, 128]})


@jax.custom_vjp
def half_gradient(x: jax.Array) -> jax.Array:
    """``x * x``, whose backward kernel has ``x * do`` and not ``2 * x * do``."""
    return _product(x, x)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * y_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


half_gradient.defvjp(lambda x: (half_gradient(x), x), lambda x, do: (_product(x, do),))


def square(x: jax.Array) -> jax.Array:
    return x * x


SPEC_HALF_GRADIENT = KernelSpec(
    name="half_gradient",
    kernel=half_gradient,
    reference=square,
    inputs=_ARRAYS,
    differentiable=(0,),
    checks=("forward", "gradient"),
)


def naive_half_gradient() -> None:
    agrees(half_gradient, square)


def mutates_input(x: jax.Array) -> jax.Array:
    """Doubles its input in place and copies that, to save a buffer; nothing says that it may."""

    def body(x_ref: Any, o_ref: Any) -> None:
        x_ref[...] = 2 * x_ref[...]
        o_ref[...] = x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


SPEC_MUTATES_INPUT = KernelSpec(
    name="mutates_input",
    kernel=mutates_input,
    reference=twice,
    inputs=_ARRAYS,
    checks=("forward", "immutability"),
)


def naive_mutates_input() -> None:
    agrees(mutates_input, twice)


def _double(x: jax.Array, *, interpret: bool = False) -> jax.Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpret
    )(x)


def falls_back(x: jax.Array) -> jax.Array:
    """A dispatcher that runs jnp wherever ``n`` is no multiple of 128, and nobody knows."""
    return _double(x) if x.shape[1] % 128 == 0 else jnp.multiply(x, 2)


SPEC_FALLS_BACK = KernelSpec(
    name="falls_back",
    kernel=falls_back,
    reference=twice,
    inputs=_ARRAYS,
    checks=("forward",),
)


def naive_falls_back() -> None:
    agrees(falls_back, twice)


def hard_coded_interpret(x: jax.Array) -> jax.Array:
    """Debugged with ``interpret=True``, which stayed: right everywhere, and a kernel nowhere."""
    return _double(x, interpret=True)


SPEC_HARD_CODED_INTERPRET = KernelSpec(
    name="hard_coded_interpret",
    kernel=hard_coded_interpret,
    reference=twice,
    inputs=_ARRAYS,
    checks=("forward",),
)


def naive_hard_coded_interpret() -> None:
    agrees(hard_coded_interpret, twice)


def right(x: jax.Array) -> jax.Array:
    """Nothing is wrong with this one: every check must pass."""
    return _double(x)


SPEC_RIGHT = KernelSpec(name="right", kernel=right, reference=twice, inputs=_ARRAYS, exact=True)


def naive_right() -> None:
    agrees(right, twice)
