"""Mosaic GPU on Blackwell: products with sums, and operands, in tensor memory."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import twin

_TILE = 128
_STEP = 64  # terms of a step: 128 bytes
_SLOTS = 2
_TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
_CHECKS = ("forward", "races", "dma")


def product(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x @ y`` for x ``(128, k)`` and y ``(k, 128)`` in bfloat16, in steps of 64 terms."""
    steps = x.shape[1] // _STEP

    def body(
        x_gmem: Any,
        y_gmem: Any,
        o_gmem: Any,
        x_smem: Any,
        y_smem: Any,
        o_smem: Any,
        sums: Any,
        loaded: Any,
        consumed: Any,
        summed: Any,
    ) -> None:
        waits = wrong != "overwritten early"

        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot, terms = jax.lax.rem(step, _SLOTS), pl.ds(step * _STEP, _STEP)
            if waits:
                pl.when(step >= _SLOTS)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            plgpu.copy_gmem_to_smem(x_gmem.at[:, terms], x_smem.at[slot], loaded.at[slot])
            plgpu.copy_gmem_to_smem(y_gmem.at[terms], y_smem.at[slot], loaded.at[slot])
            plgpu.barrier_wait(loaded.at[slot])
            barrier = consumed.at[slot] if waits else None
            operands = sums, x_smem.at[slot], y_smem.at[slot], barrier
            plgpu.tcgen05_mma(*operands, accumulate=step > 0)

        plgpu.tcgen05_commit_arrive(summed)
        if wrong != "read early":
            plgpu.barrier_wait(summed)
        o_smem[...] = plgpu.async_load_tmem(sums).astype(o_gmem.dtype)
        if wrong == "read early":
            plgpu.barrier_wait(summed)
        if waits:

            @pl.loop(max(steps - _SLOTS, 0), steps)
            def _last(step: Any) -> None:
                plgpu.barrier_wait(consumed.at[jax.lax.rem(step, _SLOTS)])

        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((_TILE, _TILE), x.dtype),
        scratch_types=[
            plgpu.SMEM((_SLOTS, _TILE, _STEP), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_SLOTS, _STEP, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.TMEM((_TILE, _TILE), jnp.float32),
            plgpu.Barrier(num_arrivals=2, num_barriers=_SLOTS),
            plgpu.Barrier(num_barriers=_SLOTS, orders_tensor_core=True),
            plgpu.Barrier(orders_tensor_core=True),
        ],
    )(x, y)


def doubled_product(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``2 x @ y`` of the same shapes: threads double x, and store it to tensor memory."""
    steps = x.shape[1] // _STEP

    def body(
        x_gmem: Any,
        y_gmem: Any,
        o_gmem: Any,
        x_smem: Any,
        y_smem: Any,
        o_smem: Any,
        x_tmem: Any,
        sums: Any,
        loaded: Any,
        summed: Any,
    ) -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            terms = pl.ds(step * _STEP, _STEP)
            plgpu.copy_gmem_to_smem(x_gmem.at[:, terms], x_smem, loaded)
            plgpu.copy_gmem_to_smem(y_gmem.at[terms], y_smem, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.async_store_tmem(x_tmem, x_smem[...] + x_smem[...])
            plgpu.commit_smem()  # the reads, before the next copy overwrites what they read
            if wrong != "not committed":
                plgpu.commit_tmem()
            plgpu.tcgen05_mma(sums, x_tmem, y_smem, summed, accumulate=step > 0)
            plgpu.barrier_wait(summed)

        o_smem[...] = plgpu.async_load_tmem(sums).astype(o_gmem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((_TILE, _TILE), x.dtype),
        scratch_types=[
            plgpu.SMEM((_TILE, _STEP), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_STEP, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.TMEM((_TILE, _STEP), x.dtype, packed=True),
            plgpu.TMEM((_TILE, _TILE), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(orders_tensor_core=True),
        ],
    )(x, y)


def products(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x[i] @ y`` for x ``(n, 128, 64)`` and y ``(64, 128)``: one tile of sums for all of them."""

    def body(
        x_gmem: Any,
        y_gmem: Any,
        o_gmem: Any,
        x_smem: Any,
        y_smem: Any,
        o_smem: Any,
        sums: Any,
        loaded: Any,
        summed: Any,
    ) -> None:
        plgpu.copy_gmem_to_smem(y_gmem, y_smem, loaded)
        plgpu.barrier_wait(loaded)

        @pl.loop(0, x.shape[0])
        def _matrix(number: Any) -> None:
            plgpu.copy_gmem_to_smem(x_gmem.at[number], x_smem, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.tcgen05_mma(sums, x_smem, y_smem, summed, accumulate=False)
            plgpu.barrier_wait(summed)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            o_smem[...] = plgpu.async_load_tmem(sums).astype(o_gmem.dtype)
            if wrong != "load not waited for":
                plgpu.wait_load_tmem()
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[number])

        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((x.shape[0], _TILE, _TILE), x.dtype),
        scratch_types=[
            plgpu.SMEM((_TILE, _STEP), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_STEP, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.TMEM((_TILE, _TILE), jnp.float32),
            plgpu.Barrier(),
            plgpu.Barrier(orders_tensor_core=True),
        ],
    )(x, y)


def _reference(x: jax.Array, y: jax.Array) -> jax.Array:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = jnp.matmul(x.astype(wide), y.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return product.astype(x.dtype)


def _doubled_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    return _reference(x + x, y)


_spec = functools.partial(
    KernelSpec,
    reference=_reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="bfloat16", dims={"m": 128, "k": [192, 320], "n": 128})
    ),
    backends=("gpu-sim:b200", "gpu-compile:b200"),
    vmappable=False,
    checks=_CHECKS,
    family="Mosaic GPU",
    file=__file__,
)


def sums_read_early(x: jax.Array, y: jax.Array) -> jax.Array:
    """Sums are read from tensor memory before the products have arrived at a barrier."""
    return product(x, y, wrong="read early")


SPEC_SUMS_READ_EARLY = _spec(name="sums_read_early", kernel={"gpu": sums_read_early})
SPEC_SUMS_READ_EARLY_RIGHT = twin(SPEC_SUMS_READ_EARLY, product)


def operand_overwritten_early(x: jax.Array, y: jax.Array) -> jax.Array:
    """The next block is copied to where the tensor core still reads the one before."""
    return product(x, y, wrong="overwritten early")


SPEC_OPERAND_OVERWRITTEN_EARLY = _spec(
    name="operand_overwritten_early", kernel={"gpu": operand_overwritten_early}
)


def tensor_memory_not_committed(x: jax.Array, y: jax.Array) -> jax.Array:
    """What threads stored to tensor memory is not committed before the tensor core reads it."""
    return doubled_product(x, y, wrong="not committed")


SPEC_TENSOR_MEMORY_NOT_COMMITTED = _spec(
    name="tensor_memory_not_committed",
    kernel={"gpu": tensor_memory_not_committed},
    reference=_doubled_reference,
)
SPEC_TENSOR_MEMORY_NOT_COMMITTED_RIGHT = twin(SPEC_TENSOR_MEMORY_NOT_COMMITTED, doubled_product)


def load_not_waited_for(x: jax.Array, y: jax.Array) -> jax.Array:
    """The next product writes sums that a load from tensor memory may still be reading."""
    return products(x, y, wrong="load not waited for")


SPEC_LOAD_NOT_WAITED_FOR = _spec(
    name="load_not_waited_for",
    kernel={"gpu": load_not_waited_for},
    inputs=pst.arguments(
        pst.arrays("b m k, k n", dtype="bfloat16", dims={"b": [2, 3], "m": 128, "k": 64, "n": 128})
    ),
)
SPEC_LOAD_NOT_WAITED_FOR_RIGHT = twin(SPEC_LOAD_NOT_WAITED_FOR, products)
