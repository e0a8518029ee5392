"""Every device gets the sum of all shards, ``o_i = sum_d x_d``, or their max, min or mean.

Shapes: ``x`` and ``o`` on each of the devices of the ring the same, of any rank. Dtypes: float32,
bfloat16 or int32; the mean is of floats.

Schedule: a reduce-scatter, after which device ``i`` has chunk ``i`` of the result, and an
all-gather of these chunks, both in both directions of the ring.

1. In turn ``t`` device ``i`` adds its part to chunk ``i - 1 - t``, or ``i + 1 + t`` the other way
   around; in turn ``devices - 1`` it stores chunk ``i`` (``_reduce_ring.py``).
2. In step ``t`` it sends chunk ``i - t``, or ``i + t``, from its result into that of its neighbor.
   Each place is written once, so nothing can be overwritten, and no credits are needed.

Bytes: a device sends ``2 (devices - 1) / devices`` of its array, the least that is possible (source
below). Partial sums of bfloat16 travel in float32, complete ones in bfloat16: ``6 (devices - 1) /
devices`` bytes an element where 4 would do, for one rounding in place of ``devices``.

There is a simpler ring, in which every shard goes around as a whole and each device adds what comes
by. It sends ``devices / 2`` times as much, and every device adds in an order of its own, so that
sums of floats differ from device to device in the last bits. Replicas of parameters that are
updated by such sums drift apart. Here, each element is added up on one device at a time, in the
order that ``reduce_scatter`` documents, and copied: all devices get the same bits.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69, 2009.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _reduce_ring as ring
from reference_kernels.collectives import _stacked

Operation = Literal["sum", "max", "min", "mean"]

OPERATIONS = ("sum", "max", "min", "mean")


def _kernel(
    me_ref: Any,
    x_ref: Any,
    o_ref: Any,
    *boxes: Any,
    axis_name: str,
    devices: int,
    pieces: ring.Pieces,
    wire: ring.Wire,
) -> None:
    *boxes, sent, arrived = boxes
    ring.enter(axis_name, pieces)
    ring.one_turn(
        x_ref,
        o_ref.at[me_ref[0]],
        boxes,
        axis_name=axis_name,
        devices=devices,
        pieces=pieces,
        wire=wire,
    )
    if devices > 1:
        ends = [pl.program_id(axis) == pl.num_programs(axis) - 1 for axis in range(3)]
        gather = functools.partial(_gather, o_ref, sent, arrived, axis_name, pieces)
        pl.when(functools.reduce(jnp.logical_and, ends))(gather)


def _gather(o_ref: Any, sent: Any, arrived: Any, axis_name: str, pieces: ring.Pieces) -> None:
    """Send the chunks of ``o (devices, height, columns)`` around, half of each either way."""
    devices, height, _ = o_ref.shape
    middle = pl.cdiv(height // pieces.rows, 2) * pieces.rows
    ways = [(0, 1, pl.ds(0, middle)), (1, -1, pl.ds(middle, height - middle))]
    if middle == height:
        del ways[1]

    @pl.loop(0, devices - 1)
    def _step(step: Any) -> None:
        copies = []
        for way, forward, rows in ways:
            place = o_ref.at[_mesh.neighbor(axis_name, -forward * step), rows]
            copies.append(
                pltpu.make_async_remote_copy(
                    place,
                    place,
                    sent.at[way],
                    arrived.at[way, step],  # a neighbor may be any number of steps ahead
                    device_id=_mesh.at(axis_name, _mesh.neighbor(axis_name, forward)),
                )
            )
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()


def _wire(op: Operation, dtype: Any, devices: int) -> ring.Wire:
    if op in ("max", "min"):
        return ring.Wire(jnp.maximum if op == "max" else jnp.minimum, _same, dtype)
    finish = (lambda total: total / devices) if op == "mean" and devices > 1 else _same
    return ring.Wire(jnp.add, finish, dtype if dtype == jnp.int32 else jnp.float32)


def _same(total: Any) -> Any:
    return total


def all_reduce(
    x: jax.Array,
    axis_name: str,
    *,
    op: Operation = "sum",
    piece_bytes: int = ring.PIECE_BYTES,
    collective_id: int = 3,
) -> jax.Array:
    """The sum, maximum, minimum or mean of ``x`` over the devices of a ring.

    For use inside ``jax.shard_map``, with ``check_vma=False``; like ``jax.lax.psum``, ``pmax``,
    ``pmin`` and ``pmean``.

    Args:
      x: float32, bfloat16 or int32, of any shape.
      axis_name: axis of the mesh: the ring.
      op: what to compute: ``"sum"``, ``"max"``, ``"min"`` or ``"mean"``.
      piece_bytes: about how many bytes travel at once; 18 such pieces must fit in VMEM.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones:
        a device that is ahead in one could be taken for a device that is behind in the other.

    Returns:
      The result, of the shape and dtype of ``x`` and with the same bits on all devices.

    Raises:
      ValueError: ``x`` is empty or has a dtype that is not supported, ``op`` is none of the four or
        the mean of integers, or ``piece_bytes`` is not a positive integer.
    """
    devices = jax.lax.axis_size(axis_name)
    ring.supported("x", x)
    _require.positive(piece_bytes=piece_bytes)
    if op not in OPERATIONS:
        raise ValueError(f"op must be one of {', '.join(OPERATIONS)}, but it is {op!r}")
    if op == "mean":
        _require.floating("x", x)
    chunk = (pl.cdiv(x.size, devices),)
    if x.ndim > 1 and x.shape[0] % devices == 0:
        chunk = (x.shape[0] // devices, *x.shape[1:])  # as it lies in memory
    pieces = ring.cut(chunk, x.dtype.itemsize, piece_bytes)
    wire = _wire(op, x.dtype, devices)
    flat = x.reshape(-1)
    flat = jnp.pad(flat, (0, devices * math.prod(chunk) - x.size))
    total = ring.call(
        functools.partial(_kernel, axis_name=axis_name, devices=devices, pieces=pieces, wire=wire),
        ring.fold(flat.reshape(devices, *chunk), pieces),
        axis_name,
        pieces=pieces,
        out_shape=(devices, pieces.height, pieces.columns),
        scratch_shapes=[
            *ring.scratch(pieces, wire, x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, devices)),
        ],
        collective_id=collective_id,
        wire=wire,
    )
    chunks = total.reshape(devices, -1)[:, : math.prod(chunk)]
    return chunks.reshape(-1)[: x.size].reshape(x.shape)


def all_reduce_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    op: Operation = "sum",
    piece_bytes: int = ring.PIECE_BYTES,
) -> jax.Array:
    """``all_reduce`` of ``x (mesh.size, ...)``, one shard for each device.

    Returns:
      ``(mesh.size, ...)``: what each device gets.

    Raises:
      ValueError: the mesh has no such axis or ``x`` not one shard for each device, and whatever
        ``all_reduce`` raises.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(all_reduce, axis_name=axis_name, op=op, piece_bytes=piece_bytes)
    return _mesh.on_each_device(one, mesh, x=x)


def reference(
    x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, op: Operation = "sum"
) -> jax.Array:
    """The operation over the axis of the mesh, for each device."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    if x.dtype != jnp.int32:
        grid = grid.astype(jnp.promote_types(x.dtype, jnp.float32))
    total = getattr(jnp, op)(grid, axis=0, keepdims=True)
    whole = jnp.broadcast_to(total.astype(x.dtype), grid.shape)
    return _stacked.by_device(whole, mesh, axis_name)
