"""The blocks of a kernel along the dims of its arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.grid.kernel_calls import kernel_calls, tiles_of

SIZES = {"m": 2048, "n": 4096}
X = jax.ShapeDtypeStruct((2048, 4096), jnp.float32)


def found(kernel, *args):
    return tiles_of(kernel_calls(jax.make_jaxpr(kernel)(*args)), SIZES)


def copied(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def in_blocks(*block):
    spec = pl.BlockSpec(block, lambda i, j: (i, j))

    def kernel(x):
        grid = (pl.cdiv(x.shape[0], block[0]), pl.cdiv(x.shape[1], block[1]))
        return pl.pallas_call(copied, grid=grid, in_specs=[spec], out_specs=spec, out_shape=x)(x)

    return kernel


def by_copies(rows):
    def body(x_ref, o_ref, buffer, semaphore):
        pltpu.async_copy(x_ref.at[pl.ds(0, rows)], buffer.at[0], semaphore).wait()
        pltpu.async_copy(buffer.at[0], o_ref.at[pl.ds(0, rows)], semaphore).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return lambda x: pl.pallas_call(
        body,
        in_specs=[anywhere],
        out_specs=anywhere,
        out_shape=x,
        scratch_shapes=[pltpu.VMEM((2, rows, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


@pytest.mark.parametrize(
    ("kernel", "tiles"),
    [
        (in_blocks(128, 512), {"m": (128,), "n": (512,)}),
        (in_blocks(8, 4096), {"m": (8,)}),
        (in_blocks(1, 4096), {}),
        (in_blocks(2048, 4096), {}),
        (by_copies(64), {"m": (64,)}),
        (lambda x: in_blocks(256, 128)(in_blocks(128, 4096)(x)), {"m": (128, 256), "n": (128,)}),
    ],
    ids=["both axes", "rows", "single rows", "whole", "copies", "two kernels"],
)
def test_blocks_by_dim(kernel, tiles):
    assert found(kernel, X) == tiles


def test_axes_that_are_no_dim_are_left_out():
    assert found(in_blocks(128, 4096), jax.ShapeDtypeStruct((6144, 4096), jnp.float32)) == {}
