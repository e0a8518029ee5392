"""Small kernels that are right but for what their arguments say."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

BLOCKS = np.random.default_rng(0).standard_normal((3, 8, 128)).astype(np.float32)
SHARDS = np.random.default_rng(1).standard_normal((4, 8, 128)).astype(np.float32)


def by_dma(x, *, read_early=False, wait=True):
    """A copy of ``x``, block by block, through a scratch buffer."""

    def body(x_ref, o_ref, buffer, arrived):
        copy = pltpu.make_async_copy(x_ref.at[pl.program_id(0)], buffer, arrived)
        copy.start()
        if read_early or not wait:
            o_ref[...] = buffer[...] if read_early else jnp.zeros_like(o_ref)
        if wait:
            copy.wait()
        if not read_early and wait:
            o_ref[...] = buffer[...]

    return pl.pallas_call(
        body,
        grid=(x.shape[0],),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, 0, 0)),
        scratch_shapes=[pltpu.VMEM(x.shape[1:], x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def prefetching(x, *, read_early=False):
    """A copy of ``x``, of which each block is fetched while the one before is copied."""

    def body(x_ref, o_ref, buffers, arrived):
        def fetch(i):
            slot = jax.lax.rem(i, 2)
            return pltpu.make_async_copy(x_ref.at[i], buffers.at[slot], arrived.at[slot])

        fetch(0).start()

        @pl.loop(0, len(x))
        def _copy(i):
            @pl.when(i + 1 < len(x))
            def _ahead():
                fetch(i + 1).start()

            fetch(i).wait()
            slot = jax.lax.rem(i + 1, 2) if read_early else jax.lax.rem(i, 2)
            o_ref[i] = buffers[slot]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def waiting(x, *, signals=1, waits=1):
    """A copy of ``x``, whose second program signals and waits."""

    def body(x_ref, o_ref, ready):
        @pl.when(pl.program_id(0) == 1)
        def _wait():
            pl.semaphore_signal(ready, signals)
            pl.semaphore_wait(ready, waits)

        o_ref[...] = x_ref[...]

    block = pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, 0, 0))
    return pl.pallas_call(
        body,
        grid=(x.shape[0],),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x)


def carried(x, *, semantics="arbitrary"):
    """Running sums over the first axis: each program needs the one before."""

    def body(x_ref, o_ref, total):
        @pl.when(pl.program_id(0) == 0)
        def _clear():
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]
        o_ref[...] = total[...]

    block = pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, 0, 0))
    return pl.pallas_call(
        body,
        grid=(x.shape[0],),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM(x.shape[1:], x.dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
    )(x)


def plain(x):
    """Nothing happens at the same time as anything else."""

    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def ring(x, *, barrier="left", collective_id=0, skips=False, waits=1, wait_send=True):
    """Every shard moved to the next device of four."""

    def body(x_ref, o_ref, sent, received):
        me, count = jax.lax.axis_index("x"), jax.lax.axis_size("x")
        right, left = jax.lax.rem(me + 1, count), jax.lax.rem(me + count - 1, count)
        if barrier:
            ready = pltpu.get_barrier_semaphore()
            pl.semaphore_signal(ready, 1, device_id={"x": left if barrier == "left" else right})
            if waits is not None:
                pl.semaphore_wait(ready, waits)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id={"x": right})
        copy.start()
        copy.wait() if wait_send else copy.wait_recv()

    def shard(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(
                collective_id=collective_id, skip_device_barrier=skips
            ),
        )(x)

    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("x",))
    return jax.shard_map(shard, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)


def gathering(x, *, slots=3):
    """Every device gets the shards of all four, which go around a ring."""

    def body(x_ref, o_ref, sent, received):
        me, count = jax.lax.axis_index("x"), jax.lax.axis_size("x")
        right, left = jax.lax.rem(me + 1, count), jax.lax.rem(me + count - 1, count)
        ready = pltpu.get_barrier_semaphore()
        for other in (left, right):
            pl.semaphore_signal(ready, 1, device_id={"x": other})
        pl.semaphore_wait(ready, 2)
        pltpu.sync_copy(x_ref.at[0], o_ref.at[me])
        for step in range(3):
            shard, slot = o_ref.at[jax.lax.rem(me - step + count, count)], step % slots
            pltpu.async_remote_copy(
                shard, shard, sent.at[slot], received.at[slot], device_id={"x": right}
            ).wait()

    def device(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((4, *x.shape[1:]), x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA((slots,))] * 2,
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("x",))
    return jax.shard_map(device, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)


def executed(body):
    """Call a body that reads ``x`` by DMA."""

    def kernel(x):
        scratch = [pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA]
        spec = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(body, in_specs=[spec], out_shape=x, scratch_shapes=scratch)(x)

    return kernel


def other(function, **options):
    """The kernel with one thing changed."""
    return functools.partial(function, **options)
