"""The blocks of a kernel along the dims of its arguments, and how many buffers it uses in turns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.grid.kernel_calls import buffers_of, kernel_calls, tiles_of

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


# Buffers that a kernel uses in turns.


def with_scratch(body, *scratch, block=None):
    anywhere = block or pl.BlockSpec(memory_space=pl.ANY)
    return lambda x: pl.pallas_call(
        body, in_specs=[anywhere], out_shape=x, scratch_shapes=scratch, grid=(8,)
    )(x)


def first_block(x_ref, o_ref, *scratch):
    buffer = scratch[0].at[0] if len(scratch[0].shape) > 2 else scratch[0]
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer, at_first(scratch[-1]))
    copy.start()
    copy.wait()
    o_ref[pl.ds(0, 8)] = buffer[...]


def at_first(semaphore):
    return semaphore.at[0] if semaphore.shape else semaphore


def in_turns(count):
    """Slots of one buffer, by a remainder."""

    def body(x_ref, o_ref, buffer, semaphore):
        def step(i, carry):
            slot = buffer.at[pl.ds(jax.lax.rem(i, count) * 8, 8)]
            pltpu.sync_copy(x_ref.at[pl.ds(i * 8, 8)], slot)
            return carry

        jax.lax.fori_loop(0, 8, step, 0)
        o_ref[...] = jnp.zeros_like(o_ref)
        del semaphore

    return body


def scoped(x_ref, o_ref):
    def inner(buffer, semaphore):
        first_block(x_ref, o_ref, buffer, semaphore)

    pl.run_scoped(inner, pltpu.VMEM((6, 8, 128), jnp.float32), DMA((6,)))


def sums_of_four(x_ref, o_ref, acc_ref):
    @pl.when(jax.lax.rem(pl.program_id(0), 4) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...]
    o_ref[pl.ds(0, 8)] = acc_ref[...]


def added(x_ref, o_ref, acc_ref):
    acc_ref[0] += x_ref[...]
    o_ref[pl.ds(0, 8)] = acc_ref[0]


DMA = pltpu.SemaphoreType.DMA
BLOCK = pltpu.VMEM((8, 128), jnp.float32)
ROWS = jnp.ones((64, 128))


def slots(count):
    return pltpu.VMEM((count, 8, 128), jnp.float32)


def buffered(count):
    return pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(count))


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        (with_scratch(first_block, slots(4), DMA((4,))), 4),
        (with_scratch(first_block, slots(2), DMA((2,))), 0),
        (with_scratch(first_block, slots(17), DMA((17,))), 0),
        (with_scratch(first_block, slots(5), DMA), 5),
        (with_scratch(first_block, *[BLOCK] * 4, *[DMA] * 4), 4),
        (with_scratch(in_turns(3), pltpu.VMEM((24, 128), jnp.float32), DMA), 3),
        (with_scratch(scoped), 6),
        (with_scratch(added, slots(8), block=buffered(3)), 3),
        (with_scratch(added, slots(8), block=buffered(2)), 0),
        (with_scratch(sums_of_four, BLOCK, block=buffered(2)), 4),
    ],
    ids=[
        *("semaphores", "two", "many", "slots", "scratch", "remainder", "scoped", "blocks"),
        *("an accumulator", "a sum"),
    ],
)
def test_buffers_in_turns(kernel, count):
    (call,) = kernel_calls(jax.make_jaxpr(kernel)(ROWS))
    assert buffers_of(call) == count


def test_semaphores_of_devices_are_no_buffers():
    (call,) = kernel_calls(jax.make_jaxpr(with_scratch(first_block, slots(3), DMA((3,))))(ROWS))
    assert buffers_of(call) == 3
    assert buffers_of(call, devices=(4,)) == buffers_of(call, devices=(2, 3)) == 0
