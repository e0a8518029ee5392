"""Kernels that copy by themselves, and one over several devices."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

ROWS = 8


def _doubled(x, wait_first):
    steps = x.shape[0] // ROWS

    def body(x_hbm, o_ref, buffer, arrived):
        def copy(step):
            source = x_hbm.at[pl.ds(step * ROWS, ROWS)]
            return pltpu.make_async_copy(source, buffer.at[step % 2], arrived.at[step % 2])

        copy(0).start()

        @pl.loop(0, steps)
        def _(step):
            @pl.when(step + 1 < steps)
            def _():
                copy(step + 1).start()

            if wait_first:
                copy(step).wait()
            o_ref[pl.ds(step * ROWS, ROWS)] = buffer[step % 2] * 2
            if not wait_first:
                copy(step).wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[
            pltpu.VMEM((2, ROWS, x.shape[1]), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )(x)


def doubled(x):
    """x * 2, for a multiple of 8 rows, by a double buffer."""
    return _doubled(x, wait_first=True)


def wrong_doubled(x):
    """It reads each buffer before its copy has arrived."""
    return _doubled(x, wait_first=False)


def shifted(x, *, mesh):
    """The shards of x, each on the device to the right."""

    def body(x_ref, o_ref, sent, arrived):
        size = jax.lax.axis_size("x")
        here = jax.lax.axis_index("x")
        right, left = (here + 1) % size, (here - 1) % size
        barrier = pltpu.get_barrier_semaphore()
        for neighbor in (left, right):
            pl.semaphore_signal(barrier, 1, device_id={"x": neighbor})
        pl.semaphore_wait(barrier, 2)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, arrived, device_id={"x": right})
        copy.start()
        copy.wait()

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=P("x", None), out_specs=P("x", None), check_vma=False
    )
    def on_each(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    return on_each(x)


def shifted_reference(x, *, mesh):
    return jnp.roll(x, x.shape[0] // mesh.shape["x"], axis=0)
