"""The devices of a host: how many JAX simulates, and that it looks for no accelerator in vain."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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


#: Devices that JAX simulates where nobody says how many.
DEFAULT_COUNT = 8


_PLATFORMS = "JAX_PLATFORMS"


#: What drivers show of an accelerator: NVIDIA (also under WSL), AMD, and both kinds of TPU driver.
_DEVICE_FILES = ("nvidia[0-9]*", "dxg", "kfd", "accel*", "vfio/[0-9]*")


_VARIABLE = "JAX_NUM_CPU_DEVICES"


_FLAG = "xla_force_host_platform_device_count"
