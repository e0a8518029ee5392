"""Meshes over simulated devices or hardware, also over those of several processes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
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


# The devices of a host: how many JAX simulates, and that it looks for no accelerator in vain.


#: Devices that JAX simulates where nobody says how many.
DEFAULT_COUNT = 8

_PLATFORMS = "JAX_PLATFORMS"

#: What drivers show of an accelerator: NVIDIA (also under WSL), AMD, and both kinds of TPU driver.
_DEVICE_FILES = ("nvidia[0-9]*", "dxg", "kfd", "accel*", "vfio/[0-9]*")


def settle_platforms(environ: MutableMapping[str, str], *, devices: Path = Path("/dev")) -> None:
    """Tell JAX that there is only the CPU, on a Linux machine where no driver shows a device.

    With libtpu or a CUDA plugin installed for its compiler, JAX would load it into this process,
    look for chips, and log that there are none. What the user set is left alone.
    """
    if environ.get(_PLATFORMS) or sys.platform != "linux":
        return
    if any(next(devices.glob(pattern), None) for pattern in _DEVICE_FILES):
        return
    environ[_PLATFORMS] = "cpu"
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")  # the variable was read at import


_VARIABLE = "JAX_NUM_CPU_DEVICES"
_FLAG = "xla_force_host_platform_device_count"


def simulate(count: int, environ: MutableMapping[str, str], *, explicit: bool) -> int:
    """Make JAX start with ``count`` CPU devices in this process and in those it starts.

    Args:
      count: the number of devices, at least 1.
      environ: the environment to write to.
      explicit: whether the user gave the count. A count that is merely the default gives way to one
        that the environment sets already.

    Returns:
      The number that JAX starts with.

    Raises:
      DeviceError: JAX has started with another number of devices.
    """
    already = _already(environ)
    if not explicit and already is not None:
        return already
    if _FLAG in environ.get("XLA_FLAGS", ""):
        # JAX rejects to start with both; the user's own command wins.
        kept = [word for word in environ["XLA_FLAGS"].split() if _FLAG not in word]
        environ["XLA_FLAGS"] = " ".join(kept)
    environ[_VARIABLE] = str(count)
    if "jax" not in sys.modules:
        return count
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if explicit and len(jax.devices("cpu")) != count:
            from pallas_sim.errors import DeviceError

            raise DeviceError(
                f"{count} CPU devices come too late: JAX has already started with "
                f"{len(jax.devices('cpu'))} CPU devices. Under pytest, something used JAX before "
                "that was configured, such as a plugin loaded with -p, or a conftest.py that calls "
                "JAX when it is imported; move that call into a fixture. Without pytest, set "
                f"JAX_NUM_CPU_DEVICES={count} before JAX starts."
            ) from None
        return len(jax.devices("cpu"))
    return count


def _already(environ: MutableMapping[str, str]) -> int | None:
    """The count that the environment sets, or None."""
    words = [word for word in environ.get("XLA_FLAGS", "").split() if _FLAG in word]
    text = words[-1].partition("=")[2] if words else environ.get(_VARIABLE, "")
    return int(text) if text.isdigit() else None
