"""Every GPU gets the shards of all: ``o[j] = x_j`` for each device ``j`` of an axis.

Shapes: ``x`` is of any shape, the same on every device; ``o`` is ``(devices, *x.shape)``, or
``(devices * rows, ...)`` if tiled. Dtypes: any of 8, 16 or 32 bits.

On a TPU a shard goes to a neighbor by a remote DMA. A GPU has the memory of the others in its own
address space, and TMA writes there as it does at home. So each block brings a tile of ``x`` to
shared memory once, and writes it to all devices from there.

``"direct"``: it is written once for each device, its own first. As every device begins with the
next one, no link is the goal of all at a time. All of NVLink's bandwidth is used, and
``devices - 1`` shards leave each device.

``"switch"``: it is written once, to a multicast address, and the NVLink switch gives it to all
(NVLink SHARP). One shard leaves each device; what arrives is the same.

The tiles are bytes to the copies: ``x`` is seen as rows of 128 elements. Two buffers take turns:
one is loaded while the other is written, and all writes of a tile form one group, so that waiting
for all groups but one frees a buffer.

A device must not end while others write to it. So when all writes of a block have arrived, it tells
the same block of all other devices, and waits for all of them. That also holds back the next call,
which would overwrite what is not read yet.

NVIDIA, "PTX ISA" 8.7, sections "cp.async.bulk.tensor" and "multimem"; NVLink SHARP: NVIDIA, "H100
Tensor Core GPU Architecture", 2022.
"""

from __future__ import annotations

import functools
import math
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _mesh, _require
from reference_kernels.collectives.all_gather import reference as on_tpu
from reference_kernels.mosaic_gpu import _peers
from reference_kernels.mosaic_gpu._peers import Schedule

_MOST = 256  # rows of a TMA copy


def _kernel(
    x_gmem: Any,
    o_gmem: Any,
    buffers: Any,
    loaded: Any,
    done: Any,
    *,
    axis_name: str,
    schedule: Schedule,
) -> None:
    _, block_rows, _ = buffers.shape
    mine = o_gmem.at[_peers.position(axis_name)]
    if schedule == "switch":
        targets = [plgpu.multicast_ref(mine, axis_name)]
    else:
        targets = [_peers.at(mine, axis_name, steps) for steps in (0, *_peers.others(axis_name))]

    @plgpu.nd_loop((pl.cdiv(x_gmem.shape[0], block_rows),), collective_axes="program")
    def _tile(info: Any) -> None:
        rows = pl.ds(info.index[0] * block_rows, block_rows)
        buffer = buffers.at[jax.lax.rem(info.local_index, 2)]
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # all but the last have left their buffer
        plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, loaded)
        plgpu.barrier_wait(loaded)
        for target in targets:
            plgpu.copy_smem_to_gmem(buffer, target.at[rows], commit_group=False)
        plgpu.commit_smem_to_gmem_group()

    plgpu.wait_smem_to_gmem(0)  # they have arrived, too
    _peers.meet(done, axis_name)


def peer_all_gather(
    x: jax.Array,
    axis_name: str,
    *,
    tiled: bool = False,
    schedule: Schedule = "direct",
    block_rows: int = 64,
    programs: int | None = None,
) -> jax.Array:
    """The shards of all devices of an axis of the mesh; inside ``jax.shard_map``.

    Args:
      x: the shard of this device, of any shape; not empty.
      axis_name: an axis of the mesh.
      tiled: False gives the shards a new dimension; True puts them one after another along axis 0.
      schedule: ``"direct"``, or ``"switch"``, which needs NVLink SHARP (Hopper and later), a mesh
        of that axis alone, and at least two devices.
      block_rows: rows of 128 elements in a tile, at most 256.
      programs: how many blocks move tiles; by default one for each SM. Fewer are enough to fill the
        links, and leave the others to something else.

    Returns:
      ``(devices, *x.shape)`` or, tiled, ``(devices * x.shape[0], ...)``; the same on all devices of
      the axis.

    Raises:
      ValueError: ``x`` is empty or a scalar, its elements are not as above, or a setting is not.
    """
    _require.nonempty("x", x)
    if x.ndim == 0:
        raise ValueError("x must have at least one dimension, but it is a scalar")
    if x.dtype.itemsize not in (1, 2, 4) or x.dtype == jnp.bool_:
        raise ValueError(f"x must have elements of 8, 16 or 32 bits, but its dtype is {x.dtype}")
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, but it is {schedule!r}")
    if schedule == "switch":
        _peers.check_switch(axis_name, schedule)
    programs = _gpu.multiprocessors() if programs is None else programs
    _require.positive(block_rows=block_rows, programs=programs)
    if block_rows > _MOST:
        raise ValueError(f"block_rows must be at most {_MOST}, but it is {block_rows}")
    devices = jax.lax.axis_size(axis_name)
    rows = pl.cdiv(x.size, _peers.LANES)
    flat = jnp.pad(x.reshape(-1), (0, rows * _peers.LANES - x.size)).reshape(rows, _peers.LANES)
    block_rows = min(block_rows, rows)
    o = plgpu.kernel(
        functools.partial(_kernel, axis_name=axis_name, schedule=schedule),
        out_type=jax.ShapeDtypeStruct((devices, rows, _peers.LANES), x.dtype),
        scratch_types={
            "buffers": plgpu.SMEM((2, block_rows, _peers.LANES), x.dtype),
            "loaded": plgpu.Barrier(),
            "done": plgpu.SemaphoreType.REGULAR,
        },
        grid=(min(programs, pl.cdiv(rows, block_rows)),),
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(flat)
    shards = o.reshape(devices, -1)[:, : math.prod(x.shape)]
    return shards.reshape((devices * x.shape[0], *x.shape[1:]) if tiled else (devices, *x.shape))


def peer_all_gather_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    tiled: bool = False,
    schedule: Schedule = "direct",
    block_rows: int = 64,
    programs: int | None = None,
) -> jax.Array:
    """On every device of a mesh, the shards of those along an axis.

    Args:
      x: ``(devices, ...)``, a shard for each device of the mesh.
      mesh: any mesh with that axis.
      axis_name: the axis; each position on the others has its own group.
      tiled: as in ``peer_all_gather``.
      schedule: as in ``peer_all_gather``.
      block_rows: as in ``peer_all_gather``.
      programs: as in ``peer_all_gather``.

    Returns:
      ``(devices, ...)``: what each device holds then.

    Raises:
      ValueError: as in ``peer_all_gather``; the mesh has no such axis; or ``x`` has a wrong first
        dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    gather = functools.partial(
        peer_all_gather,
        axis_name=axis_name,
        tiled=tiled,
        schedule=schedule,
        block_rows=block_rows,
        programs=programs,
    )
    return _mesh.on_each_device(gather, mesh, x=jnp.asarray(x))


def reference(
    x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, tiled: bool = False
) -> jax.Array:
    """All shards of the axis, put together once and given to each of its devices."""
    return on_tpu(x, mesh=mesh, axis_name=axis_name, tiled=tiled)
