"""Every GPU gets one slice of the sum over all: ``o_j = sum_i x_i[j]`` for the devices of an axis.

Shapes: ``x`` is ``(devices * rows, ...)``, the same on every device; ``o`` is ``(rows, ...)``.
Dtypes: float32, bfloat16 or float16; sums are float32 and rounded once.

A device reads its slice from the memory of all devices and adds: nothing is sent by anybody, and no
buffer is needed. Each element of the result is summed by one device, in the order of the axis, so
it does not depend on who sums.

``"direct"``: one load for each device. ``devices - 1`` slices arrive at each device, as much as any
schedule needs without help of the network. All loads of a tile are started before the first is
added.

``"switch"``: one load from a multicast address. The NVLink switch reads from all devices and adds
on the way (NVLink SHARP), so one slice arrives. It adds in an order of its own, in float32 for the
16-bit dtypes.

The tiles are rows of 128 elements, eight of them at a time: a thread has eight elements, 16 bytes
of the 16-bit dtypes, which is the widest load. A block ends when the same block of all other
devices is done: until then they may still read its ``x``.

NVIDIA, "PTX ISA" 8.7, section "multimem.ld_reduce".
"""

from __future__ import annotations

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _mesh, _require
from reference_kernels.collectives.reduce_scatter import reference as on_tpu
from reference_kernels.mosaic_gpu import _peers
from reference_kernels.mosaic_gpu._peers import Schedule

_ROWS = 8  # of a tile


def _kernel(x_gmem: Any, o_gmem: Any, done: Any, *, axis_name: str, schedule: Schedule) -> None:
    rows, lanes = o_gmem.shape
    mine = x_gmem.at[_peers.position(axis_name)]
    width = 16 // x_gmem.dtype.itemsize
    layout = plgpu.Layout.WG_STRIDED((_ROWS, lanes), vec_size=width)

    @plgpu.nd_loop((rows // _ROWS,), collective_axes="program")
    def _tile(info: Any) -> None:
        here = pl.ds(info.index[0] * _ROWS, _ROWS)
        if schedule == "switch":
            total = plgpu.multimem_load_reduce(
                mine.at[here], collective_axes=(axis_name,), reduction_op="add"
            )
            o_gmem[here] = plgpu.layout_cast(total, layout)
            return
        parts = [
            plgpu.load(_peers.at_position(mine.at[here], axis_name, device), layout=layout)
            for device in range(jax.lax.axis_size(axis_name))
        ]
        total = sum(part.astype(jnp.float32) for part in parts)
        o_gmem[here] = total.astype(o_gmem.dtype)

    _peers.meet(done, axis_name)


def peer_reduce_scatter(
    x: jax.Array,
    axis_name: str,
    *,
    schedule: Schedule = "direct",
    programs: int | None = None,
) -> jax.Array:
    """This device's slice of the sum over an axis of the mesh; inside ``jax.shard_map``.

    Args:
      x: what this device adds: ``(devices * rows, ...)``, float32, bfloat16 or float16.
      axis_name: an axis of the mesh.
      schedule: ``"direct"``, or ``"switch"``, which needs NVLink SHARP (Hopper and later), a mesh
        of that axis alone, and at least two devices.
      programs: how many blocks read and add; by default one for each SM.

    Returns:
      ``(rows, ...)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` is empty or a scalar, has another dtype or a size along axis 0 that is not a
        multiple of the number of devices, or a setting is not as above.
    """
    _require.nonempty("x", x)
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(f"x must be float32, bfloat16 or float16, but its dtype is {x.dtype}")
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, but it is {schedule!r}")
    if schedule == "switch":
        _peers.check_switch(axis_name, schedule)
    devices = jax.lax.axis_size(axis_name)
    if x.ndim == 0 or x.shape[0] % devices:
        raise ValueError(
            f"x must have a size along axis 0 that is a multiple of the {devices} devices of "
            f"{axis_name!r}, but its shape is {x.shape}"
        )
    programs = _gpu.multiprocessors() if programs is None else programs
    _require.positive(programs=programs)
    slices = x.reshape(devices, -1)
    size = slices.shape[1]
    rows = pl.cdiv(size, _ROWS * _peers.LANES) * _ROWS
    padded = jnp.pad(slices, ((0, 0), (0, rows * _peers.LANES - size)))
    o = plgpu.kernel(
        functools.partial(_kernel, axis_name=axis_name, schedule=schedule),
        out_type=jax.ShapeDtypeStruct((rows, _peers.LANES), x.dtype),
        scratch_types={"done": plgpu.SemaphoreType.REGULAR},
        grid=(min(programs, rows // _ROWS),),
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(padded.reshape(devices, rows, _peers.LANES))
    return o.reshape(-1)[:size].reshape(x.shape[0] // devices, *x.shape[1:])


def peer_reduce_scatter_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    schedule: Schedule = "direct",
    programs: int | None = None,
) -> jax.Array:
    """``peer_reduce_scatter`` of ``x (mesh.size, ...)``, one shard for each device.

    Args:
      x: ``(devices, ...)``, what each device of the mesh adds.
      mesh: any mesh with that axis.
      axis_name: the axis; each position on the others has its own sum.
      schedule: as in ``peer_reduce_scatter``.
      programs: as in ``peer_reduce_scatter``.

    Returns:
      ``(devices, ...)``: the slice that each device gets.

    Raises:
      ValueError: as in ``peer_reduce_scatter``; the mesh has no such axis; or ``x`` has a wrong
        first dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(
        peer_reduce_scatter, axis_name=axis_name, schedule=schedule, programs=programs
    )
    return _mesh.on_each_device(one, mesh, x=jnp.asarray(x))


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """Sums over the axis of the mesh, each device's slice of them."""
    return on_tpu(x, mesh=mesh, axis_name=axis_name, tiled=True)
