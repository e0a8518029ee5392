"""Every GPU gets the sum over all: ``o = sum_i x_i`` for the devices of an axis.

Shapes: ``x`` and ``o`` are of any shape, the same on every device. Dtypes: float32, bfloat16 or
float16; sums are float32 and rounded once.

``"direct"``: each device reads all of ``x`` from every device and adds. ``devices - 1`` arrays
arrive at each device. That is more than a ring would move, but it is one step: for small arrays,
such as the activations of a few tokens, nothing is faster ("one-shot").

``"switch"``: each device is responsible for a share of the elements. It loads their sum from a
multicast address, where the NVLink switch reads from all devices and adds, and stores it to a
multicast address, where the switch writes to all (NVLink SHARP). One array arrives at each device
and one leaves it, however many there are.

A device must not end while others read its ``x`` or write its ``o``. Its blocks count themselves at
a semaphore that only this GPU sees (``memory_scope="gpu"``, which needs not be visible on NVLink).
When all of them are done, the first block tells the other devices, with one signal: to a multicast
address too, if there is a switch. It then waits for theirs. The semaphores are made outside of the
kernel (``alloc_semaphore``) and are zero again when it ends.

NVIDIA, "PTX ISA" 8.7, sections "multimem.ld_reduce, multimem.st, multimem.red".
"""

from __future__ import annotations

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _mesh, _require
from reference_kernels.collectives.all_reduce import reference as on_tpu
from reference_kernels.mosaic_gpu import _peers
from reference_kernels.mosaic_gpu._peers import Schedule

_ROWS = 8  # of a tile

_NEW = "alloc_semaphore"  # in JAX 0.12


def _kernel(
    x_gmem: Any, counted: Any, finished: Any, o_gmem: Any, *, axis_name: str, schedule: Schedule
) -> None:
    rows, lanes = o_gmem.shape
    devices = jax.lax.axis_size(axis_name)
    layout = plgpu.Layout.WG_STRIDED((_ROWS, lanes), vec_size=16 // x_gmem.dtype.itemsize)

    def add_from_all(here: Any) -> None:
        parts = [
            plgpu.load(_peers.at_position(x_gmem.at[here], axis_name, device), layout=layout)
            for device in range(devices)
        ]
        o_gmem[here] = sum(part.astype(jnp.float32) for part in parts).astype(o_gmem.dtype)

    def add_in_switch(here: Any) -> None:
        total = plgpu.multimem_load_reduce(
            x_gmem.at[here], collective_axes=(axis_name,), reduction_op="add"
        )
        plgpu.multimem_store(total, o_gmem.at[here], (axis_name,))

    # With a switch, a tile is the business of one device.
    share = devices if schedule == "switch" else 1
    first = _peers.position(axis_name) if share > 1 else 0

    @plgpu.nd_loop((rows // _ROWS // share,), collective_axes="program")
    def _tile(info: plgpu.NDLoopInfo) -> None:
        here = pl.ds((info.index[0] * share + first) * _ROWS, _ROWS)
        (add_in_switch if schedule == "switch" else add_from_all)(here)

    plgpu.semaphore_signal(counted, memory_scope="gpu")

    @pl.when(jax.lax.axis_index("program") == 0)
    def _first_block() -> None:
        programs = jax.lax.axis_size("program")
        plgpu.semaphore_wait(counted, programs, memory_scope="gpu")
        if devices == 1:
            return
        if schedule == "switch":  # which signals this device, too
            plgpu.semaphore_signal_multicast(finished, collective_axes=axis_name)
            plgpu.semaphore_wait(finished, devices)
        else:
            _peers.meet(finished, axis_name)


def peer_all_reduce(
    x: jax.Array,
    axis_name: str,
    *,
    schedule: Schedule = "direct",
    programs: int | None = None,
) -> jax.Array:
    """The sum over an axis of the mesh; inside ``jax.shard_map``.

    Args:
      x: what this device adds, of any shape; float32, bfloat16 or float16.
      axis_name: an axis of the mesh.
      schedule: ``"direct"``, or ``"switch"``, which needs NVLink SHARP (Hopper and later), a mesh
        of that axis alone, and at least two devices.
      programs: how many blocks read and add; by default one for each SM.

    Returns:
      The shape and dtype of ``x``; the same on all devices of the axis.

    Raises:
      ValueError: ``x`` is empty or has another dtype, or a setting is not as above.
      NotImplementedError: before JAX 0.12.
    """
    _gpu.check_names("peer_all_reduce", _NEW)
    _require.nonempty("x", x)
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(f"x must be float32, bfloat16 or float16, but its dtype is {x.dtype}")
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, but it is {schedule!r}")
    if schedule == "switch":
        _peers.check_switch(axis_name, schedule)
    programs = _gpu.multiprocessors() if programs is None else programs
    _require.positive(programs=programs)
    step = _ROWS * _peers.LANES * jax.lax.axis_size(axis_name)
    flat = jnp.pad(x.reshape(-1), (0, -x.size % step)).reshape(-1, _peers.LANES)
    o = plgpu.kernel(
        functools.partial(_kernel, axis_name=axis_name, schedule=schedule),
        out_type=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        grid=(min(programs, flat.shape[0] // _ROWS),),
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(flat, plgpu.alloc_semaphore(), plgpu.alloc_semaphore())
    return o.reshape(-1)[: x.size].reshape(x.shape)


def peer_all_reduce_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    schedule: Schedule = "direct",
    programs: int | None = None,
) -> jax.Array:
    """``peer_all_reduce`` of ``x (mesh.size, ...)``, one shard for each device.

    Args:
      x: ``(devices, ...)``, what each device of the mesh adds.
      mesh: any mesh with that axis.
      axis_name: the axis; each position on the others has its own sum.
      schedule: as in ``peer_all_reduce``.
      programs: as in ``peer_all_reduce``.

    Returns:
      ``(devices, ...)``: what each device holds then.

    Raises:
      ValueError: as in ``peer_all_reduce``; the mesh has no such axis; or ``x`` has a wrong first
        dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    reduce = functools.partial(
        peer_all_reduce, axis_name=axis_name, schedule=schedule, programs=programs
    )
    return _mesh.on_each_device(reduce, mesh, x=jnp.asarray(x))


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """The sums, in float32 at least, given to each device of the axis."""
    return on_tpu(x, mesh=mesh, axis_name=axis_name)
