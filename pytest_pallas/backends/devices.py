"""Meshes over simulated devices or hardware, also over those of several processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import DeviceError
from pytest_pallas.backends.processes import Gang, gang
from pytest_pallas.errors import TooFewDevicesError

if TYPE_CHECKING:
    from jax.sharding import Mesh


def make_mesh(axes: Mapping[str, int], platform: str) -> Mesh:
    """A mesh with named axes over the first devices of a platform.

    In a program of several processes it has the same number of devices of each of them, in the
    order of processes.

    Args:
      axes: axis name to size, in order, such as ``{"x": 2, "y": 4}``.
      platform: ``"cpu"`` for simulated devices, ``"tpu"`` or ``"gpu"`` for hardware.

    Raises:
      DeviceError: an axis is not a positive integer.
      TooFewDevicesError: there are fewer devices than the mesh has, or it would leave a process
        out.
    """
    import jax
    from jax.sharding import AxisType

    sizes: list[object] = list(axes.values())
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise DeviceError(
            f"a mesh needs axes with positive sizes, such as x=2 and y=2, not {dict(axes)}"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=_devices(axes, platform),
    )


def _devices(axes: Mapping[str, int], platform: str) -> Sequence[Any]:
    """The devices of a mesh."""
    import jax

    needed = math.prod(axes.values())
    devices = jax.devices(platform)
    processes = gang()
    if processes is not None:
        return _devices_of_all(axes, platform, devices, processes)
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
    return devices[:needed]


def _devices_of_all(
    axes: Mapping[str, int], platform: str, devices: Sequence[Any], processes: Gang
) -> Sequence[Any]:
    """As many devices of each process as of any other, in the order of processes."""
    needed, count = math.prod(axes.values()), processes.count
    own = [[each for each in devices if each.process_index == n] for n in range(count)]
    there = (
        f"there are {count} processes with {', '.join(str(len(each)) for each in own)} {platform} "
        f"devices"
    )
    if needed % count:
        raise TooFewDevicesError(
            f"mesh {dict(axes)} has {needed} devices, which {count} processes cannot share evenly: "
            f"a mesh has the same number of devices of every process; {there}"
        )
    share = needed // count
    if any(len(each) < share for each in own):
        raise TooFewDevicesError(
            f"mesh {dict(axes)} needs {needed} devices, {share} of every process, but {there}; "
            f"give each process {share} devices, or run more processes"
        )
    return [device for each in own for device in each[:share]]
