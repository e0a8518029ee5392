"""What kernels ask of the GPU that they run on, be it there or not.

A persistent kernel starts as many blocks as the GPU has multiprocessors. Without a GPU a backend
of pytest-pallas answers for its target, as ``gpu-compile:h100`` does.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


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


def has(*names: str) -> bool:
    """Whether this JAX has all ``names`` in ``jax.experimental.pallas.mosaic_gpu``."""
    return all(hasattr(plgpu, name) for name in names)


def check_names(kernel: str, *names: str) -> None:
    """Raise NotImplementedError unless this JAX has all ``names`` that came with JAX 0.12."""
    missing = [f"plgpu.{name}" for name in names if not has(name)]
    if missing:
        raise NotImplementedError(
            f"{kernel} needs {' and '.join(missing)}, new in JAX 0.12, but this is JAX "
            f"{jax.__version__}; install a newer JAX"
        )


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
