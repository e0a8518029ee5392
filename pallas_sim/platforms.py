"""Where JAX looks for chips. It imports nothing but the standard library."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

_PLATFORMS = "JAX_PLATFORMS"

#: What drivers show of an accelerator: NVIDIA (also under WSL), AMD, and both kinds of TPU driver.
_DRIVER_FILES = ("nvidia[0-9]*", "dxg", "kfd", "accel*", "vfio/[0-9]*")


def set_platforms(
    environ: MutableMapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> None:
    """Tell JAX that there is only the CPU, on a Linux machine where no driver shows a device.

    With libtpu or a CUDA plugin installed for its compiler, JAX would load it into this process,
    look for chips, and log that there are none. What the user set is left alone. ``simulate`` calls
    it; a script that starts JAX before may call it first.

    Args:
      environ: gets ``JAX_PLATFORMS=cpu``, which processes that are started later inherit.
      devices: the folder of device files.
    """
    if environ.get(_PLATFORMS) or sys.platform != "linux":
        return
    if any(next(devices.glob(pattern), None) for pattern in _DRIVER_FILES):
        return
    environ[_PLATFORMS] = "cpu"
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")  # the variable was read at import
