"""What a kernel promises besides its answer: its gradient, its inputs, that it is a kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Raises

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


def drops_the_tail(x: jax.Array) -> jax.Array:
    """Doubles whole tiles of 128 columns, and never says that it drops the columns after them."""
    width = x.shape[1] // 128 * 128

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    shape = jax.ShapeDtypeStruct((x.shape[0], width), x.dtype)
    return pl.pallas_call(body, out_shape=shape)(x[:, :width])


SPEC_DROPS_THE_TAIL = KernelSpec(
    name="drops_the_tail",
    kernel=drops_the_tail,
    reference=twice,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256]}),
    raises=(Raises((jax.ShapeDtypeStruct((8, 200), jnp.float32),), ValueError, "multiple of 128"),),
    checks=("forward", "raises"),
)


def naive_drops_the_tail() -> None:
    agrees(drops_the_tail, twice)


def right(x: jax.Array) -> jax.Array:
    """Nothing is wrong with this one: every check must pass."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


SPEC_RIGHT = KernelSpec(name="right", kernel=right, reference=twice, inputs=_ARRAYS, exact=True)


def naive_right() -> None:
    agrees(right, twice)


def falls_back(x: jax.Array) -> jax.Array:
    """A dispatcher that runs jnp wherever ``n`` is no multiple of 128, and nobody knows."""
    return right(x) if x.shape[1] % 128 == 0 else jnp.multiply(x, 2)


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

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=shape, interpret=True)(x)  # the line to be named


SPEC_HARD_CODED_INTERPRET = KernelSpec(
    name="hard_coded_interpret",
    kernel=hard_coded_interpret,
    reference=twice,
    inputs=_ARRAYS,
    checks=("forward",),
)


def naive_hard_coded_interpret() -> None:
    agrees(hard_coded_interpret, twice)


def any_order(x: jax.Array) -> jax.Array:
    """Adds the rows in another order at each call, as float atomics do: other bits every time."""

    def body(order_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def add(i: Any, total: jax.Array) -> jax.Array:
            return total + x_ref[pl.ds(order_ref[i], 1), :]

        o_ref[...] = jax.lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros_like(o_ref))

    rows = x.shape[0]
    order = jax.experimental.io_callback(
        lambda: np.random.default_rng().permutation(rows).astype(np.int32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
    )
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
    )(order, x)


def column_sums(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=0, keepdims=True)


SPEC_ANY_ORDER = KernelSpec(
    name="any_order",
    kernel=any_order,
    reference=column_sums,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": 64, "n": 128}, values="normal"),
    checks=("forward", "determinism"),
)


def naive_any_order() -> None:
    agrees(any_order, column_sums)
