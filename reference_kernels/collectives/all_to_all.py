"""Device ``i`` gets the ``i``-th piece of every device: ``o_i[j] = x_j[i]``, a transpose.

Shapes: ``x`` is of any shape, the same on every device, and has as many pieces along ``split_axis``
as there are devices; they are along ``concat_axis`` of ``o``. Dtypes: any. It is
``jax.lax.all_to_all``: tokens go to their experts with it, and attention changes from shards of the
sequence to shards of the heads.

Schedule: every device sends all its pieces at once, each straight to where it belongs, first to its
right neighbor, then to the next one, so that no device is the first target of two. A piece that
stays is copied within the device.

Bytes: a device sends ``(devices - 1) / devices`` of ``x``, the least: every other device needs a
piece that only this one has. On a ring, a piece crosses a quarter of the devices on the way, on
average and in both directions; links then carry more than that, with any schedule.

The transpose costs nothing where pieces are whole tiles on either side: a DMA reads and writes with
strides. Along the last two axes, a piece must be a multiple of a tile there for that, (8, 128) for
float32 and (16, 128) for bfloat16; else XLA brings the pieces to the front, before or behind.

All pieces have the same size and all must be there at the end, so one semaphore counts them all.

Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems", 1997, on this schedule among others.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh
from reference_kernels.collectives import _pieces, _stacked
from reference_kernels.collectives._pieces import Pieces


def _exchange_kernel(
    x_ref: Any,
    o_ref: Any,
    kept: Any,
    sent: Any,
    received: Any,
    *,
    axis_name: str,
    source: Pieces,
    result: Pieces,
) -> None:
    me = jax.lax.axis_index(axis_name)
    others = [_mesh.neighbor(axis_name, step) for step in range(1, jax.lax.axis_size(axis_name))]
    if others:
        _mesh.enter(axis_name, *others)
    mine = result.of(o_ref, me)
    copies = [
        pltpu.async_remote_copy(
            source.of(x_ref, other), mine, sent, received, device_id=_mesh.at(axis_name, other)
        )
        for other in others
    ]
    own = pltpu.async_copy(source.of(x_ref, me), mine, kept)
    for copy in (*copies, own):
        copy.wait()


def all_to_all(
    x: jax.Array,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool = False,
    collective_id: int = 5,
) -> jax.Array:
    """A piece of the shard of every device of an axis of the mesh; inside ``jax.shard_map``.

    Args:
      x: the shard of this device, of any shape and dtype.
      axis_name: an axis of the mesh.
      split_axis: the axis of ``x`` that has a piece for each device. Its size must be ``devices``,
        or with ``tiled`` a multiple.
      concat_axis: the axis of the result that has a piece of each device.
      tiled: False takes ``split_axis`` away and puts in ``concat_axis``; True keeps all axes, and
        splits and lengthens them.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones.

    Returns:
      With ``tiled``, ``x.shape`` with ``split_axis`` divided and then ``concat_axis`` multiplied by
      ``devices``; without, ``x.shape`` with ``split_axis`` deleted and then ``devices`` inserted
      at ``concat_axis``.

    Raises:
      ValueError: ``x`` is empty, has no such axes, or cannot be split so.
    """
    devices = jax.lax.axis_size(axis_name)
    source, result = _forms(x.shape, axis_name, devices, split_axis, concat_axis, tiled)
    read, written = source, result
    if not source.sliceable(x.dtype):
        x, read = source.to_front(x), source.front
    if not result.sliceable(x.dtype):
        written = result.front
    dma = pltpu.SemaphoreType.DMA
    o = pl.pallas_call(
        functools.partial(_exchange_kernel, axis_name=axis_name, source=read, result=written),
        out_shape=jax.ShapeDtypeStruct(written.whole, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[dma, dma, dma],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id if devices > 1 else None),
    )(x)
    return o if written is result else result.from_front(o)


def _forms(
    shape: tuple[int, ...],
    axis_name: str,
    devices: int,
    split_axis: int,
    concat_axis: int,
    tiled: bool,
) -> tuple[Pieces, Pieces]:
    """What pieces the operand and the result consist of."""
    if 0 in shape:
        raise ValueError(f"x must not be empty, but its shape is {shape}")
    split_axis = _pieces.place("split_axis", split_axis, len(shape), shape)
    concat_axis = _pieces.place("concat_axis", concat_axis, len(shape), shape)
    size, rest = divmod(shape[split_axis], devices)
    if rest or (size > 1 and not tiled):
        wanted = "a multiple of" if tiled else "as long as"
        raise ValueError(
            f"x must be {wanted} the {devices} devices of axis {axis_name!r} along its axis "
            f"{split_axis}, but its shape is {shape}"
        )
    kept = (size,) if tiled else ()
    piece = (*shape[:split_axis], *kept, *shape[split_axis + 1 :])
    return Pieces(devices, piece, split_axis, tiled), Pieces(devices, piece, concat_axis, tiled)


def all_to_all_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    tiled: bool = False,
) -> jax.Array:
    """Pieces exchanged between the devices along an axis of a mesh.

    Args:
      x: ``(devices, ...)``, a shard for each device of the mesh, of any dtype.
      mesh: any mesh with that axis.
      axis_name: the axis; devices at other positions on the other axes exchange nothing.
      split_axis: as in ``all_to_all``, not counting ``devices``.
      concat_axis: as in ``all_to_all``, not counting ``devices``.
      tiled: as in ``all_to_all``.

    Returns:
      ``(devices, ...)``, of the dtype of ``x``.

    Raises:
      ValueError: as in ``all_to_all``; the mesh has no such axis; or ``x`` has a wrong first
        dimension.
    """
    x = jnp.asarray(x)
    _forms(x.shape[1:], axis_name, _mesh.axis_size(mesh, axis_name), split_axis, concat_axis, tiled)
    exchange = functools.partial(
        all_to_all,
        axis_name=axis_name,
        split_axis=split_axis,
        concat_axis=concat_axis,
        tiled=tiled,
    )
    return _mesh.on_each_device(exchange, mesh, x=x)


def reference(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    tiled: bool = False,
) -> jax.Array:
    """Every shard split, and the pieces of each device joined."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    devices = len(grid)
    # pieces[j][i] goes from j to i, for all positions on the other axes.
    pieces = [jnp.split(shards, devices, axis=split_axis + 1) for shards in grid]
    if tiled:
        joined = [jnp.concatenate(each, axis=concat_axis + 1) for each in zip(*pieces, strict=True)]
    else:
        pieces = [[piece.squeeze(split_axis + 1) for piece in each] for each in pieces]
        joined = [jnp.stack(each, axis=concat_axis + 1) for each in zip(*pieces, strict=True)]
    return _stacked.by_device(jnp.stack(joined), mesh, axis_name)
