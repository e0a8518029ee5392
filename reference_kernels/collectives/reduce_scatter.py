"""Each device gets the sum of one chunk: ``o_i = sum_d x_d[i]``, like ``jax.lax.psum_scatter``.

Shapes: on each of the devices of the ring ``x (..., devices * c, ...)`` or, not tiled, ``(...,
devices, ...)``, ``o (..., c, ...)`` or ``(...)``. Dtypes: float32, bfloat16 or int32.

Schedule (``_reduce_ring.py``): in turn ``t`` device ``i`` adds its part to chunk ``i - 1 - t`` and
sends the sum to ``i + 1``; after ``devices - 1`` transfers chunk ``i`` is complete on device ``i``.
Half of each chunk goes around the other way, with ``+`` and ``-`` exchanged. Chunks of less than
two tiles, (8, 128) for float32 and (16, 128) for bfloat16, are not halved.

Bytes: a device sends ``(devices - 1) / devices`` of its array. That is the least: each of the other
``devices - 1`` chunks needs its part, and a sum is no smaller than a part. Two links share the
work, so with links of bandwidth ``b`` it takes ``(devices - 1) / devices * bytes / (2 b)``, and one
latency a turn. What does not fill whole tiles is padded with zeros, which travel as well.

Partial sums of bfloat16 travel in float32, which is twice the bytes. In bfloat16 they would be
rounded ``devices - 1`` times, and each time to 8 bits.

Floats are always added in the order of the ring: in the half that goes to the right, chunk ``c`` is
``((x_{c + 1} + x_{c + 2}) + ...) + x_c``, in the other ``((x_{c - 1} + x_{c - 2}) + ...) + x_c``.

Source: the ring algorithm of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", Journal of Parallel and Distributed Computing 69, 2009.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _reduce_ring as ring
from reference_kernels.collectives import _stacked


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
    del me_ref  # the index map's
    ring.enter(axis_name, pieces)
    ring.one_turn(
        x_ref, o_ref, boxes, axis_name=axis_name, devices=devices, pieces=pieces, wire=wire
    )


def reduce_scatter(
    x: jax.Array,
    axis_name: str,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    piece_bytes: int = ring.PIECE_BYTES,
    collective_id: int = 4,
) -> jax.Array:
    """The sum of ``x`` over the devices of a ring, of which each gets a part.

    For use inside ``jax.shard_map``, with ``check_vma=False``.

    Args:
      x: float32, bfloat16 or int32, of any shape that can be divided along one dimension.
      axis_name: axis of the mesh: the ring.
      scatter_dimension: the dimension that is divided.
      tiled: keep that dimension, divided by the number of devices, rather than drop it.
      piece_bytes: about how many bytes travel at once; 18 such pieces must fit in VMEM.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones:
        a device that is ahead in one could be taken for a device that is behind in the other.

    Returns:
      The part of this device, of the dtype of ``x``.

    Raises:
      ValueError: the dimension cannot be divided over the axis, ``x`` is empty or has a dtype that
        is not supported, or ``piece_bytes`` is not a positive integer.
    """
    devices = jax.lax.axis_size(axis_name)
    ring.supported("x", x)
    _require.positive(piece_bytes=piece_bytes)
    chunks = _chunks(x, devices, axis_name, scatter_dimension, tiled=tiled)
    shape = chunks.shape[1:]
    pieces = ring.cut(shape, x.dtype.itemsize, piece_bytes)
    wide = x.dtype if x.dtype == jnp.int32 else jnp.float32
    wire = ring.Wire(jnp.add, lambda total: total, wide)
    total = ring.call(
        functools.partial(_kernel, axis_name=axis_name, devices=devices, pieces=pieces, wire=wire),
        ring.fold(chunks, pieces),
        axis_name,
        pieces=pieces,
        out_shape=(pieces.height, pieces.columns),
        scratch_shapes=ring.scratch(pieces, wire, x.dtype),
        collective_id=collective_id,
        wire=wire,
    )
    return ring.unfold(total, shape)


def _chunks(
    x: jax.Array, devices: int, axis_name: str, dimension: int, *, tiled: bool
) -> jax.Array:
    """``x`` as ``(devices, ...)``, one chunk for each device, in the shape of its result."""
    if not -x.ndim <= dimension < x.ndim:
        raise ValueError(
            f"scatter_dimension must be a dimension of x, whose shape is {x.shape}, but it is "
            f"{dimension}"
        )
    dimension %= x.ndim
    size = x.shape[dimension]
    if tiled and size % devices:
        raise ValueError(
            f"x must have a size that the {devices} devices of the axis {axis_name!r} divide in "
            f"dimension {dimension}, but its shape is {x.shape}"
        )
    if not tiled and size != devices:
        raise ValueError(
            f"x must have one chunk for each of the {devices} devices of the axis {axis_name!r} in "
            f"dimension {dimension}, but its shape is {x.shape}; tiled=True divides a dimension"
        )
    if tiled:
        x = x.reshape(*x.shape[:dimension], devices, size // devices, *x.shape[dimension + 1 :])
    return jnp.moveaxis(x, dimension, 0)


def reduce_scatter_on_mesh(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    scatter_dimension: int = 0,
    tiled: bool = False,
    piece_bytes: int = ring.PIECE_BYTES,
) -> jax.Array:
    """``reduce_scatter`` of ``x (mesh.size, ...)``, one shard for each device.

    Returns:
      ``(mesh.size, ...)``: the part that each device gets.

    Raises:
      ValueError: the mesh has no such axis or ``x`` not one shard for each device, and whatever
        ``reduce_scatter`` raises.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(
        reduce_scatter,
        axis_name=axis_name,
        scatter_dimension=scatter_dimension,
        tiled=tiled,
        piece_bytes=piece_bytes,
    )
    return _mesh.on_each_device(one, mesh, x=x)


def reference(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    scatter_dimension: int = 0,
    tiled: bool = False,
) -> jax.Array:
    """Sums over the axis of the mesh, each device's part of them."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    wide = x.dtype if x.dtype == jnp.int32 else jnp.promote_types(x.dtype, jnp.float32)
    total = jnp.sum(grid, axis=0, dtype=wide)
    dimension = scatter_dimension % (x.ndim - 1) + 1  # after that of the other devices
    parts = jnp.stack(jnp.split(total, len(grid), axis=dimension))
    if not tiled:
        parts = jnp.squeeze(parts, axis=dimension + 1)
    return _stacked.by_device(parts, mesh, axis_name).astype(x.dtype)
