"""Hosts without an accelerator: JAX need not look for one there, which takes time and is loud."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from pathlib import Path

_VARIABLE = "JAX_PLATFORMS"

#: What drivers show of an accelerator: NVIDIA (also under WSL), AMD, and both kinds of TPU driver.
_DEVICE_FILES = ("nvidia[0-9]*", "dxg", "kfd", "accel*", "vfio/[0-9]*")


def settle_platforms(environ: MutableMapping[str, str], *, devices: Path = Path("/dev")) -> None:
    """Tell JAX that there is only the CPU, on a Linux machine where no driver shows a device.

    With libtpu or a CUDA plugin installed for its compiler, JAX would load it into this process,
    look for chips, and log that there are none. What the user set is left alone.
    """
    if environ.get(_VARIABLE) or sys.platform != "linux":
        return
    if any(next(devices.glob(pattern), None) for pattern in _DEVICE_FILES):
        return
    environ[_VARIABLE] = "cpu"
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")  # the variable was read at import
