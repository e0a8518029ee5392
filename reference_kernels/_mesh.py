"""What kernels over several devices share: axes of meshes, neighbors, barriers, shards.

Their operands have one leading dimension, ``devices``, with one shard for each device in the order
of ``mesh.devices``, and so have their results, replicated ones too: then a test sees what every
device holds, and not only what one of them does. Inside ``jax.shard_map``, a kernel is called with
one shard, like the collectives of ``jax.lax``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec


def axis_size(mesh: jax.sharding.Mesh, axis_name: str) -> int:
    """How many devices lie along an axis of ``mesh``.

    Raises:
      ValueError: the mesh has no such axis.
    """
    if axis_name not in mesh.shape:
        raise ValueError(
            f"mesh must have an axis {axis_name!r}, but its axes are {mesh.axis_names}"
        )
    return mesh.shape[axis_name]


def on_each_device(
    function: Callable[..., Any], mesh: jax.sharding.Mesh, **operands: jax.Array
) -> Any:
    """``function`` of one shard of every operand, on every device of ``mesh``.

    Args:
      function: takes arrays without the dimension ``devices``, by the names of the operands, and
        returns such arrays; called inside ``jax.shard_map`` over all axes of the mesh.
      mesh: any mesh; the first dimension of the operands is split over all of its axes.
      operands: ``(devices, ...)``, where devices is ``mesh.size``.

    Returns:
      The results of all devices, each ``(devices, ...)``.

    Raises:
      ValueError: the first dimension of an operand is not ``mesh.size``.
    """
    for name, operand in operands.items():
        if operand.ndim == 0 or operand.shape[0] != mesh.size:
            raise ValueError(
                f"{name} must have one shard for each of the {mesh.size} devices of the mesh "
                f"{dict(mesh.shape)}, as its first dimension, but its shape is {operand.shape}"
            )

    def one_device(shards: dict[str, jax.Array]) -> Any:
        results = function(**{name: shard[0] for name, shard in shards.items()})
        return jax.tree.map(lambda result: result[None], results)

    split = PartitionSpec(mesh.axis_names)
    # A pallas_call does not say over which mesh axes its output varies, so the check is off.
    return jax.shard_map(one_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)(
        operands
    )


def neighbor(axis_name: str, steps: int | jax.Array) -> jax.Array:
    """Position on the axis of the device that is ``steps`` further on the ring, ``> -size``."""
    size = jax.lax.axis_size(axis_name)
    return jax.lax.rem(jax.lax.axis_index(axis_name) + steps + size, size)


def at(axis_name: str, position: int | jax.Array) -> dict[str, Any]:
    """The ``device_id`` of a position on an axis: on all other axes of the mesh, one's own."""
    return {axis_name: position}


def enter(axis_name: str, *writers: int | jax.Array) -> None:
    """Wait until the devices that this one writes to are in the kernel as well.

    A remote DMA writes into memory of another device, which may still belong to something else
    until that device has entered the kernel. So every device tells those that write to it.

    Uses the barrier semaphore, so ``CompilerParams(collective_id=...)`` must be given. Signals are
    counted, not told apart: a device that runs ahead into its next call must not be able to signal
    twice what others have not signaled once. With one writer that cannot happen. With more, it
    does no harm where all are writers of all (whoever passes first has a signal of each for each
    call), or where no device can end a call before all of its neighbors have passed this barrier.

    Args:
      axis_name: the axis of the ring.
      writers: positions on it of the devices that write to this one; as many devices must be
        written to by each.
    """
    ready = pltpu.get_barrier_semaphore()
    for position in writers:
        pl.semaphore_signal(ready, 1, device_id=at(axis_name, position))
    pl.semaphore_wait(ready, len(writers))
