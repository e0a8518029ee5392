"""Simulated CPU devices: how many JAX makes is settled before its first backend starts."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

from pytest_pallas.errors import DeviceError

_VARIABLE = "JAX_NUM_CPU_DEVICES"
_FLAG = "xla_force_host_platform_device_count"


def simulate(count: int, environ: MutableMapping[str, str], *, asked: bool) -> None:
    """Make JAX start with ``count`` CPU devices in this process and in those it starts.

    Args:
      count: the number of devices, at least 1.
      environ: the environment to write to.
      asked: whether the user gave the count. A count that is merely the default gives way to one
        that the environment sets already.

    Raises:
      DeviceError: JAX has started with another number of devices.
    """
    if not asked and (_VARIABLE in environ or _FLAG in environ.get("XLA_FLAGS", "")):
        return
    if _FLAG in environ.get("XLA_FLAGS", ""):
        # JAX refuses to start with both; the user's own command wins.
        kept = [word for word in environ["XLA_FLAGS"].split() if _FLAG not in word]
        environ["XLA_FLAGS"] = " ".join(kept)
    environ[_VARIABLE] = str(count)
    if "jax" not in sys.modules:
        return
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if asked and len(jax.devices("cpu")) != count:
            raise DeviceError(
                f"--pallas-devices={count} came too late: JAX has already started with "
                f"{len(jax.devices('cpu'))} CPU devices. Something used JAX before pytest was "
                "configured, such as a plugin loaded with -p, or a conftest.py that calls JAX "
                "when it is imported; move that call into a fixture."
            ) from None
