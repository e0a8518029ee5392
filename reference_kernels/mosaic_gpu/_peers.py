"""What kernels over several GPUs share: memory and semaphores of other devices.

A GPU can read and write the memory of others that it is connected with by NVLink. The runtime tells
a kernel where the operands and results of the same call lie on each device, and begins none before
all devices are ready to. So a kernel may write to others at once, but it must not end before they
are done with what belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _mesh

#: Whether each device is reached by itself, or all of them through the switch.
Schedule = Literal["direct", "switch"]

#: Elements in a row of what is moved as bytes.
LANES = 128


def position(axis_name: str) -> Any:
    """Where this device is on the axis."""
    # Of a single device Mosaic GPU would ask NVSHMEM (JAX 0.12.0.1).
    return jax.lax.axis_index(axis_name) if jax.lax.axis_size(axis_name) > 1 else 0


def at(ref: Any, axis_name: str, steps: int) -> Any:
    """``ref`` of the device that is ``steps`` further on the axis; 0 is one's own."""
    if steps == 0:
        return ref
    return plgpu.remote_ref(ref, _mesh.at(axis_name, _mesh.neighbor(axis_name, steps)))


def at_position(ref: Any, axis_name: str, place: int) -> Any:
    """``ref`` of the device at a place on the axis."""
    if jax.lax.axis_size(axis_name) == 1:
        return ref
    return plgpu.remote_ref(ref, _mesh.at(axis_name, place))


def others(axis_name: str) -> range:
    """How many steps further the other devices of an axis are, the next one first."""
    return range(1, jax.lax.axis_size(axis_name))


def signal(semaphore: Any, axis_name: str, steps: Sequence[int]) -> None:
    """Tell devices by their ``semaphore`` that everything written before is there.

    All at once, so that one fence, which takes as long as a write to another device, serves all.
    """
    plgpu.semaphore_signal_parallel(
        *(
            plgpu.SemaphoreSignal(
                semaphore, device_id=_mesh.at(axis_name, _mesh.neighbor(axis_name, each))
            )
            for each in steps
        )
    )


def meet(semaphore: Any, axis_name: str) -> None:
    """Wait until this block of all other devices of the axis is here too."""
    steps = others(axis_name)
    if steps:
        signal(semaphore, axis_name, steps)
        pl.semaphore_wait(semaphore, len(steps))


def check_switch(axis_name: str, schedule: str) -> None:
    """Raise ValueError unless the switch can reach all devices of the axis, and no others."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size != jax.lax.axis_size(axis_name):
        raise ValueError(
            f"schedule {schedule!r} needs axis_name to be the only axis of the mesh, but the mesh "
            f"is {dict(mesh.shape)} and axis_name is {axis_name!r}"
        )
