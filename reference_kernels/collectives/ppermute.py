"""Shards move between the devices of an axis as a list of pairs says: ``o_t = x_s`` for ``(s, t)``.

Shapes: ``x`` and ``o`` are of any shape, the same on every device of the axis. Dtypes: any. It is
``jax.lax.ppermute``: no device sends twice or receives twice, and ``o = 0`` where nothing comes in.

The pairs are known when the kernel is built, but all devices run one program. So each looks up its
own target and source before the kernel, which gets them as two numbers in SMEM, -1 for none. Then
each role is a branch: a device may send and receive, only send, only receive, copy to itself, or
idle.

The handshake at the entry is with exactly those that need it: a device tells the one that writes
to it, and who sends waits for that one word. One signal from one device cannot be mistaken, as long
as the pairs are the same: the next signal of a target comes with its next call, which it begins
when this call's shard has arrived. Calls with other pairs need another ``collective_id``, or a
device that is done with the first and signals in the second is taken for somebody else's target.

Zeros are filled in behind the kernel, on the devices that need them only.

Every device sends its shard at most once, in one step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _stacked

_NOBODY = -1

#: Pairs of a source and a target, as positions on the axis.
Pairs = Sequence[tuple[int, int]]


def _ppermute_kernel(
    roles: Any,
    x_ref: Any,
    o_ref: Any,
    sent: Any,
    received: Any,
    *,
    axis_name: str,
    moving: bool,
    staying: bool,
) -> None:
    target, source = roles[0], roles[1]
    me = jax.lax.axis_index(axis_name)
    if staying:
        pl.when(target == me)(lambda: pltpu.sync_copy(x_ref, o_ref))
    if not moving:
        return
    sends = (target != _NOBODY) & (target != me)
    receives = (source != _NOBODY) & (source != me)
    ready = pltpu.get_barrier_semaphore()
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id=_mesh.at(axis_name, target)
    )

    @pl.when(receives)
    def _let_it_write() -> None:
        pl.semaphore_signal(ready, 1, device_id=_mesh.at(axis_name, source))

    @pl.when(sends)
    def _send() -> None:
        pl.semaphore_wait(ready, 1)
        copy.start()
        copy.wait_send()

    pl.when(receives)(copy.wait_recv)


def ppermute(x: jax.Array, axis_name: str, perm: Pairs, *, collective_id: int = 1) -> jax.Array:
    """What the pairs send to this device, or zeros; inside ``jax.shard_map``.

    Args:
      x: the shard of this device, of any shape and dtype.
      axis_name: an axis of the mesh.
      perm: pairs ``(source, target)`` of positions on the axis. A position is the source of one
        pair at most, and the target of one at most.
      collective_id: selects the barrier semaphore. Calls along other axes or with other pairs need
        another one.

    Returns:
      An array of the shape and dtype of ``x``.

    Raises:
      ValueError: ``x`` is empty, or ``perm`` has a position twice or one that is not on the axis.
    """
    _require.nonempty("x", x)
    devices = jax.lax.axis_size(axis_name)
    table = _roles(perm, devices, axis_name)
    if not perm:
        return jnp.zeros_like(x)
    moving = any(source != target for source, target in perm)
    staying = any(source == target for source, target in perm)
    roles = jnp.asarray(table)[jax.lax.axis_index(axis_name)]
    o = pl.pallas_call(
        functools.partial(_ppermute_kernel, axis_name=axis_name, moving=moving, staying=staying),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id if moving else None),
    )(roles, x)
    if len(perm) == devices:
        return o
    return jax.lax.cond(roles[1] == _NOBODY, jnp.zeros_like, lambda kept: kept, o)


def _roles(perm: Pairs, devices: int, axis_name: str) -> np.ndarray:
    """The target and the source of every position on the axis: ``(devices, 2)``."""
    roles = np.full((devices, 2), _NOBODY, np.int32)
    for pair in perm:
        for column, position in enumerate(pair):
            if not 0 <= position < devices:
                raise ValueError(
                    f"perm must have positions on the axis {axis_name!r}, from 0 to {devices - 1}, "
                    f"but one of its pairs is {pair}"
                )
            if roles[position, column] != _NOBODY:
                raise ValueError(
                    f"perm must have each position as {('source', 'target')[column]} once at most, "
                    f"but {position} is it twice"
                )
            roles[position, column] = pair[1 - column]
    return roles


def ppermute_on_mesh(
    x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, perm: Pairs
) -> jax.Array:
    """The shards of ``x``, moved along an axis of a mesh as pairs say.

    Args:
      x: ``(devices, ...)``, a shard for each device of the mesh, of any dtype.
      mesh: any mesh with that axis.
      axis_name: the axis; it is the same for all positions on the others.
      perm: as in ``ppermute``.

    Returns:
      ``(devices, ...)``, of the dtype of ``x``.

    Raises:
      ValueError: as in ``ppermute``; the mesh has no such axis; or ``x`` has a wrong first
        dimension.
    """
    _roles(perm, _mesh.axis_size(mesh, axis_name), axis_name)
    function = functools.partial(ppermute, axis_name=axis_name, perm=perm)
    return _mesh.on_each_device(function, mesh, x=jnp.asarray(x))


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, perm: Pairs) -> jax.Array:
    """Zeros with one shard after another put where it belongs."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    moved = jnp.zeros_like(grid)
    for source, target in perm:
        moved = moved.at[target].set(grid[source])
    return _stacked.by_device(moved, mesh, axis_name)
