"""Every device gets the shards of all: ``o[j] = x_j`` for each device ``j`` of an axis.

Shapes: ``x`` is of any shape, the same on every device; ``o`` is ``(devices, *x.shape)``, or as
``axis`` and ``tiled`` of ``jax.lax.all_gather`` say. Dtypes: any.

Every device has ``devices - 1`` shards to receive, and as all of them do, it sends as many: that is
the least, and all three schedules send no more. They differ in how far and in what turn.

``"direct"``: each device sends its shard to every other one, all at once. One step; but a shard
crosses all links between the two, so on a ring, links carry it again and again.

``"ring"``: each device sends to its right neighbor only, its own shard first and then whatever has
come in from the left. ``devices - 1`` steps, every link is crossed once a step, in one direction.

``"both"``: links can be used in both directions at once. Shards go to the right and to the left,
each way half around, so ``devices // 2`` steps. An even number of devices has one opposite, whose
shard comes in halves, one from each side.

A DMA semaphore counts bytes. It does not say whose: of two shards on their way to one semaphore,
the halves are as much as one of them. The devices of a ring can be several steps ahead of their
neighbors, so every step has a semaphore of its own there. ``"direct"`` needs all shards before it
can end and none before the others, so one semaphore for their sum is enough.

The own shard is copied to its place when the first transfers are under way. XLA may have put both
arrays in VMEM, and a copy from there to there is made of loads and stores, and waited for at once.

No buffer is used twice: each shard has its place in the output, so there is nothing to overwrite,
and no neighbor needs to be asked but at the entry.

Van de Geijn, "On global combine operations", 1994; Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _pieces, _stacked
from reference_kernels.collectives._pieces import Pieces, tiles

Schedule = Literal["direct", "ring", "both"]


def _kernel(
    x_ref: Any,
    o_ref: Any,
    kept: Any,
    sent: Any,
    received: Any,
    *,
    axis_name: str,
    schedule: Schedule,
) -> None:
    devices = o_ref.shape[0]
    own = pltpu.make_async_copy(x_ref, o_ref.at[jax.lax.axis_index(axis_name)], kept)
    if devices == 1:
        own.start()
    elif schedule == "direct":
        _direct(x_ref, o_ref, own, sent, received, axis_name=axis_name)
    else:
        _ring(x_ref, o_ref, own, sent, received, axis_name=axis_name, both=schedule == "both")
    own.wait()


def _direct(x_ref: Any, o_ref: Any, own: Any, sent: Any, received: Any, *, axis_name: str) -> None:
    mine = o_ref.at[jax.lax.axis_index(axis_name)]
    others = [_mesh.neighbor(axis_name, steps) for steps in range(1, o_ref.shape[0])]
    _mesh.enter(axis_name, *others)
    counts = sent.at[0], received.at[0, 0]
    copies = [
        pltpu.async_remote_copy(x_ref, mine, *counts, device_id=_mesh.at(axis_name, other))
        for other in others
    ]
    own.start()
    for copy in copies:
        copy.wait()


def _ring(
    x_ref: Any, o_ref: Any, own: Any, sent: Any, received: Any, *, axis_name: str, both: bool
) -> None:
    directions = (1, -1) if both else (1,)
    steps, opposite = divmod(o_ref.shape[0] - 1, len(directions))
    # What goes each way in each step: the whole of a shard, or in the last one perhaps a half.
    parts = [[()] * len(directions)] * steps
    if opposite:
        parts.append(_halves(x_ref.shape, x_ref.dtype))
    _mesh.enter(axis_name, *(_mesh.neighbor(axis_name, -direction) for direction in directions))

    copies: list[list[Any]] = [[] for _ in directions]
    for step, each in enumerate(parts):
        for lane, part in enumerate(each):
            if step:
                copies[lane][-1].wait_recv()
            shard = o_ref.at[_mesh.neighbor(axis_name, -directions[lane] * step)]
            copy = pltpu.async_remote_copy(
                (shard if step else x_ref).at[part],
                shard.at[part],
                sent.at[lane],
                received.at[lane, step],
                device_id=_mesh.at(axis_name, _mesh.neighbor(axis_name, directions[lane])),
            )
            copies[lane].append(copy)
        if step == 0:
            own.start()
    for lane in copies:
        for copy in lane[-1:]:
            copy.wait_recv()
        for copy in lane:
            copy.wait_send()


def _halves(shape: tuple[int, ...], dtype: Any) -> list[tuple[Any, ...]]:
    """Where a shard is cut in two, at the edge of a tile; or all of it, if it is a single tile."""
    for axis, (size, tile) in enumerate(zip(shape, tiles(shape, dtype), strict=True)):
        half = pl.cdiv(size, 2 * tile) * tile
        if half < size:
            before = (slice(None),) * axis
            return [(*before, pl.ds(0, half)), (*before, pl.ds(half, size - half))]
    return [()]


def all_gather(
    x: jax.Array,
    axis_name: str,
    *,
    axis: int = 0,
    tiled: bool = False,
    schedule: Schedule = "both",
    collective_id: int = 2,
) -> jax.Array:
    """The shards of all devices of an axis of the mesh; inside ``jax.shard_map``.

    Args:
      x: the shard of this device, of any shape and dtype.
      axis_name: an axis of the mesh.
      axis: where the shards are in the result. With 0 they are where the kernel writes them; XLA
        moves them for any other one.
      tiled: False gives them a new dimension; True puts them one after another along ``axis``. With
        ``axis=0`` that costs nothing where the rows of ``x`` are whole tiles.
      schedule: ``"direct"``, ``"ring"`` or ``"both"``.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones.

    Returns:
      ``x.shape`` with ``devices`` inserted at ``axis``, or with the size of ``axis`` times
      ``devices``; the same on all devices of the axis.

    Raises:
      ValueError: ``x`` is empty or has no such axis, or there is no such schedule.
    """
    _require.nonempty("x", x)
    axis = _pieces.place("axis", axis, x.ndim + (not tiled), x.shape)
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, but it is {schedule!r}")
    devices = jax.lax.axis_size(axis_name)
    result = Pieces(devices, x.shape, axis, tiled)
    dma = pltpu.SemaphoreType.DMA
    lanes = 2 if schedule == "both" else 1
    steps = 1 if schedule == "direct" or devices == 1 else pl.cdiv(devices - 1, lanes)
    o = pl.pallas_call(
        functools.partial(_kernel, axis_name=axis_name, schedule=schedule),
        out_shape=jax.ShapeDtypeStruct(result.front.whole, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[dma, dma((lanes,)), dma((lanes, steps))],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id if devices > 1 else None),
    )(x.reshape(result.front.shape))
    return result.from_front(o)


def all_gather_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    axis: int = 0,
    tiled: bool = False,
    schedule: Schedule = "both",
) -> jax.Array:
    """On every device of a mesh, the shards of those along an axis.

    Args:
      x: ``(devices, ...)``, a shard for each device of the mesh, of any dtype.
      mesh: any mesh with that axis.
      axis_name: the axis; each position on the others has its own ring.
      axis: as in ``all_gather``, not counting ``devices``.
      tiled: as in ``all_gather``.
      schedule: as in ``all_gather``.

    Returns:
      ``(devices, ...)``: what each device holds then.

    Raises:
      ValueError: as in ``all_gather``; the mesh has no such axis; or ``x`` has a wrong first
        dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    gather = functools.partial(
        all_gather, axis_name=axis_name, axis=axis, tiled=tiled, schedule=schedule
    )
    return _mesh.on_each_device(gather, mesh, x=jnp.asarray(x))


def reference(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    axis: int = 0,
    tiled: bool = False,
) -> jax.Array:
    """All shards of the axis, put together once and given to each of its devices."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    join = jnp.concatenate if tiled else jnp.stack
    put = jax.vmap(lambda shards: join(list(shards), axis), in_axes=1)(grid)
    everywhere = jnp.broadcast_to(put, (len(grid), *put.shape))
    return _stacked.by_device(everywhere, mesh, axis_name)
