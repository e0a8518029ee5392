"""What is demanded of an axis that is divided over devices."""

from __future__ import annotations

import jax

from reference_kernels._mesh import axis_size


def divide(name: str, axis: str, size: int, mesh: jax.sharding.Mesh, axis_name: str) -> int:
    """How much of an operand's axis of ``size`` each device along ``axis_name`` has.

    Raises:
      ValueError: the mesh has no such axis, or the size is not divisible by that of the axis.
    """
    devices = axis_size(mesh, axis_name)
    if size % devices:
        raise ValueError(
            f"{name} must have a size {axis} that is divisible by the {devices} devices along "
            f"{axis_name!r}, but its {axis} is {size}"
        )
    return size // devices
