"""Matrix products over a 3-D grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def matmul(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``x @ y`` for any sizes, summed in float32 scratch."""
    (m, k), n = x.shape, y.shape[1]

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        step = pl.program_id(2)
        if wrong == "cleared by multiplying":
            acc_ref[...] *= jnp.where(step == 0, 0.0, 1.0)
        else:
            acc_ref[...] = jnp.where(step == 0, 0.0, acc_ref[...])
        left = k - step * block
        x, y = x_ref[...], y_ref[...]
        x = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < left, x, 0)
        if wrong != "one side masked":
            y = jnp.where(jax.lax.broadcasted_iota(jnp.int32, y.shape, 0) < left, y, 0)
        acc_ref[...] += jnp.dot(x, y, precision="highest", preferred_element_type=jnp.float32)

        @pl.when(step == pl.num_programs(2) - 1)
        def _store() -> None:
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    tile = (block, block)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block), pl.cdiv(n, block), pl.cdiv(k, block)),
        in_specs=[
            pl.BlockSpec(tile, lambda i, j, step: (i, step)),
            pl.BlockSpec(tile, lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec(tile, lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM(tile, jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, precision="highest")


_ANY_SIZE = pst.arguments(
    pst.arrays("m k, k n", dtype="float32", dims={"m": [8, 13], "k": [8, 13, 24], "n": [8, 16]}),
    tuning={"block": 8},
)


def cleared_by_multiplying(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """The sum is cleared by multiplying it by zero, which keeps NaN and infinity."""
    return matmul(x, y, block=block, wrong="cleared by multiplying")


SPEC_CLEARED_BY_MULTIPLYING = KernelSpec(
    name="cleared_by_multiplying",
    kernel=cleared_by_multiplying,
    reference=reference,
    inputs=_ANY_SIZE,
    family="matmul",
    backends=INTERPRETERS,
)
SPEC_CLEARED_BY_MULTIPLYING_RIGHT = twin(SPEC_CLEARED_BY_MULTIPLYING, matmul)


def one_side_masked(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Beyond the end of k, x is masked and y is not: zero times whatever is there."""
    return matmul(x, y, block=block, wrong="one side masked")


SPEC_ONE_SIDE_MASKED = KernelSpec(
    name="one_side_masked",
    kernel=one_side_masked,
    reference=reference,
    inputs=_ANY_SIZE,
    family="matmul",
    backends=INTERPRETERS,
)


def matmul_in_place(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``x @ y``, summed in the output block; sizes are multiples of ``block``."""
    (m, k), n = x.shape, y.shape[1]
    last = wrong != "k before n"

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(2 if last else 1) == 0)
        def _clear() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.dot(x_ref[...], y_ref[...], precision="highest")

    def at(*axes: int) -> pl.BlockSpec:
        """The block that axes of the grid number, ``(m, n, k)`` if ``last``."""
        order = (0, 1, 2) if last else (0, 2, 1)
        return pl.BlockSpec((block, block), lambda *ids: tuple(ids[order[axis]] for axis in axes))

    shape = (m // block, n // block, k // block)
    sums = "parallel" if wrong == "summed in parallel" else "arbitrary"
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=shape if last else (shape[0], shape[2], shape[1]),
        in_specs=[at(0, 2), at(2, 1)],
        out_specs=at(0, 1),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", sums)
            if last
            else ("parallel", "arbitrary", "arbitrary")
        ),
    )(x, y)


_WHOLE_BLOCKS = pst.arguments(
    pst.arrays("m k, k n", dtype="float32", dims={"m": [8, 16], "k": [8, 24], "n": [8, 16]}),
    tuning={"block": 8},
)


def k_before_n(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """The sum runs along the middle of the grid: its block is left and comes back."""
    return matmul_in_place(x, y, block=block, wrong="k before n")


SPEC_K_BEFORE_N = KernelSpec(
    name="k_before_n",
    kernel=k_before_n,
    reference=reference,
    inputs=_WHOLE_BLOCKS,
    exact=True,
    family="matmul",
    backends=INTERPRETERS,
)
SPEC_K_BEFORE_N_RIGHT = twin(SPEC_K_BEFORE_N, matmul_in_place)


def summed_in_parallel(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """The dimension that is summed over is declared parallel."""
    return matmul_in_place(x, y, block=block, wrong="summed in parallel")


SPEC_SUMMED_IN_PARALLEL = KernelSpec(
    name="summed_in_parallel",
    kernel=summed_in_parallel,
    reference=reference,
    inputs=_WHOLE_BLOCKS,
    exact=True,
    family="matmul",
    backends=INTERPRETERS,
)
