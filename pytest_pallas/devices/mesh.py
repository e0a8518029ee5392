"""Meshes over simulated devices or hardware."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_pallas.errors import DeviceError, TooFewDevicesError

if TYPE_CHECKING:
    from jax.sharding import Mesh


def make_mesh(axes: Mapping[str, int], platform: str) -> Mesh:
    """A mesh with named axes over the first devices of a platform.

    Args:
      axes: axis name to size, in order, such as ``{"x": 2, "y": 4}``.
      platform: ``"cpu"`` for simulated devices, ``"tpu"`` or ``"gpu"`` for hardware.

    Raises:
      DeviceError: an axis is not a positive integer.
      TooFewDevicesError: there are fewer devices than the mesh has.
    """
    import jax
    from jax.sharding import AxisType

    sizes: list[object] = list(axes.values())
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise DeviceError(
            f"a mesh needs axes with positive sizes, such as x=2 and y=2, not {dict(axes)}"
        )
    needed = math.prod(axes.values())
    devices = jax.devices(platform)
    if len(devices) < needed:
        remedy = "use a larger host"
        if platform == "cpu":
            remedy = (
                f"run with --pallas-devices={needed}, or without pytest set "
                f"JAX_NUM_CPU_DEVICES={needed} before JAX starts"
            )
        raise TooFewDevicesError(
            f"mesh {dict(axes)} needs {needed} devices, but there are {len(devices)} {platform} "
            f"devices; {remedy}"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=devices[:needed],
    )
