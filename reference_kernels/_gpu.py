"""What kernels ask of the GPU that they run on, be it there or not.

A persistent kernel starts as many blocks as the GPU has multiprocessors. Without a GPU a backend
of pytest-pallas answers for its target, as ``gpu-compile:h100`` does.
"""

from __future__ import annotations

from typing import Any

import jax


def multiprocessors() -> int:
    """Streaming multiprocessors (SMs) of the GPU, such as 132 of an H100.

    Raises:
      ValueError: there is neither a GPU nor a backend that stands for one.
    """
    return int(_asked("core_count"))


def capability() -> int:
    """The major compute capability: 8 is Ampere, 9 Hopper, 10 Blackwell.

    Raises:
      ValueError: there is neither a GPU nor a backend that stands for one.
    """
    return int(str(_asked("compute_capability")).partition(".")[0])


def _asked(name: str) -> Any:
    device = jax.devices()[0]
    value = getattr(device, name, None)
    if value is None:
        raise ValueError(
            f"this kernel needs a GPU to know its {name}, but jax.devices()[0] is a "
            f"{device.device_kind}; run it on a GPU, or under --pallas-backend=gpu-sim, "
            "gpu-interpret or gpu-compile"
        )
    return value
