"""Right kernels that not every backend runs: to other devices, by own copies, for Mosaic GPU.

``test_special_kernels.py`` copies this file to inner projects as ``special.py``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def _ring_body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
    me, devices = jax.lax.axis_index("x"), jax.lax.axis_size("x")
    right, left = jax.lax.rem(me + 1, devices), jax.lax.rem(me + devices - 1, devices)
    barrier = pltpu.get_barrier_semaphore()
    for neighbor in (left, right):
        pl.semaphore_signal(barrier, 1, device_id=neighbor)
    pl.semaphore_wait(barrier, 2)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=right)
    copy.start()
    copy.wait()


def shift(x: Any, *, mesh: Any) -> Any:
    """The shard of each device of axis ``x`` goes to the next one."""

    def shard(x: Any) -> Any:
        return pl.pallas_call(
            _ring_body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    return jax.shard_map(shard, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)


def shift_reference(x: Any, *, mesh: Any) -> Any:
    """``shift`` in jnp."""
    return jnp.roll(x, x.shape[0] // mesh.shape["x"], axis=0)


def ring(x: Any) -> Any:
    """``shift`` over all devices."""
    return shift(x, mesh=Mesh(jax.devices("cpu"), ("x",)))


def ring_reference(x: Any) -> Any:
    """``ring`` in jnp."""
    return shift_reference(x, mesh=Mesh(jax.devices("cpu"), ("x",)))


def _copies_body(x_hbm: Any, o_any: Any, buffer: Any, done: Any) -> None:
    rows = pl.ds(pl.program_id(0) * 8, 8)
    pltpu.async_copy(x_hbm.at[rows], buffer, done).wait()
    buffer[...] = buffer[...] * 2
    pltpu.async_copy(buffer, o_any.at[rows], done).wait()


def copies(x: Any) -> Any:
    """``2 x``, eight rows at a time, between HBM and VMEM by copies of its own."""
    return pl.pallas_call(
        _copies_body,
        grid=(x.shape[0] // 8,),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.VMEM((8, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def copies_reference(x: Any) -> Any:
    """``copies`` in jnp."""
    return x * 2


def _mosaic_body(x_gmem: Any, o_gmem: Any, smem: Any, barrier: Any) -> None:
    rows = pl.ds(jax.lax.axis_index("rows") * 64, 64)
    plgpu.copy_gmem_to_smem(x_gmem.at[rows], smem, barrier)
    plgpu.barrier_wait(barrier)
    smem[...] = smem[...] + 1
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, o_gmem.at[rows])
    plgpu.wait_smem_to_gmem(0)


def mosaic(x: Any) -> Any:
    """``x + 1`` on a GPU, 64 rows a block."""
    return plgpu.kernel(
        _mosaic_body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM((64, x.shape[1]), x.dtype), plgpu.Barrier()],
        grid=(x.shape[0] // 64,),
        grid_names=("rows",),
    )(x)


def mosaic_reference(x: Any) -> Any:
    """``mosaic`` in jnp."""
    return x + 1
