"""Each device sends its shard to its right neighbor: ``o_{(i + 1) mod devices} = x_i``.

Shapes: ``x`` and ``o`` are of any shape, the same on every device of the axis. Dtypes: any.

A remote DMA writes into the output buffer of another device, so that device must have entered the
kernel: before, the buffer may still belong to something else. So every device first tells its left
neighbor, the one that writes to it, and waits for the same word from its right neighbor. One
signal from the one device that matters is exact. With a signal from each neighbor, two signals of
one neighbor that ran ahead into its next call would look like one of each.

The copy signals two semaphores: the sender's when the data has left, the receiver's when it has
arrived. Waiting for both means that no device returns before its output is complete and its input
may be reused.

Every device sends its shard once, which is the least that does it. A single device copies it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _stacked


def _permute_kernel(
    x_ref: Any, o_ref: Any, send_semaphore: Any, receive_semaphore: Any, *, axis_name: str
) -> None:
    if jax.lax.axis_size(axis_name) == 1:
        pltpu.sync_copy(x_ref, o_ref)
        return
    left, right = (_mesh.neighbor(axis_name, steps) for steps in (-1, 1))
    _mesh.enter(axis_name, left)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, send_semaphore, receive_semaphore, device_id=_mesh.at(axis_name, right)
    )
    copy.start()
    copy.wait()


def right_permute(x: jax.Array, axis_name: str, *, collective_id: int = 0) -> jax.Array:
    """The shard of the device before this one on a ring; inside ``jax.shard_map``.

    It is ``jax.lax.ppermute`` with ``[(i, (i + 1) % devices) for i in range(devices)]``.

    Args:
      x: the shard of this device, of any shape and dtype.
      axis_name: the axis of the mesh that is the ring.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones:
        a device that is done with the first and signals in the second could be taken for another
        one by a device that still waits in the first.

    Returns:
      The shard of the left neighbor, of the shape and dtype of ``x``.

    Raises:
      ValueError: ``x`` is empty.
    """
    _require.nonempty("x", x)
    alone = jax.lax.axis_size(axis_name) == 1
    return pl.pallas_call(
        functools.partial(_permute_kernel, axis_name=axis_name),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=None if alone else collective_id),
    )(x)


def right_permute_on_mesh(
    x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str = "x"
) -> jax.Array:
    """``x`` with every shard moved to the next device along an axis of a mesh.

    Args:
      x: ``(devices, ...)``, a shard for each device of the mesh, of any dtype.
      mesh: any mesh with that axis.
      axis_name: the axis that is the ring; each position on the other axes has its own.

    Returns:
      ``(devices, ...)``, of the dtype of ``x``.

    Raises:
      ValueError: the mesh has no such axis, or ``x`` is empty or has a wrong first dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    return _mesh.on_each_device(
        functools.partial(right_permute, axis_name=axis_name), mesh, x=jnp.asarray(x)
    )


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str = "x") -> jax.Array:
    """``x`` rolled by one along an axis of the mesh."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    return _stacked.by_device(jnp.roll(grid, 1, axis=0), mesh, axis_name)
