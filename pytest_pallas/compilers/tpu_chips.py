"""TPU topologies to compile for, by chip and number of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pytest_pallas.errors import DeviceError

#: Dims of a chip's interconnect: a torus of three dims, or a mesh of two (Google's data sheets).
_DIMS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}

#: Devices that JAX shows for one chip: v4 and tpu7x have two TensorCores with a device each in the
#: topologies of libtpu 0.0.51; v5p's two are fused into one.
_DEVICES_A_CHIP = {"v4": 2, "v5e": 1, "v5p": 1, "v6e": 1, "tpu7x": 2}

#: TensorCores of such a device.
_CORES = {"v4": 1, "v5e": 1, "v5p": 2, "v6e": 1, "tpu7x": 1}

_CHIPS_A_HOST = 4

#: Largest edge of the topologies that are tried.
_LARGEST = 8


def attributes(target: str) -> dict[str, int]:
    """What ``jax.Device`` has on a chip, beside what it has on a CPU.

    Args:
      target: name of the chip, such as ``"v6e"``.
    """
    return {"num_cores": _CORES[target]}


def topology(target: str, devices: int) -> str:
    """The name of the smallest topology of a chip with at least ``devices`` devices.

    Args:
      target: name of the chip, such as ``"v6e"``.
      devices: how many devices a program runs on.

    Raises:
      DeviceError: no topology that libtpu knows is large enough.
    """
    for shape in _shapes(_DIMS[target]):
        if math.prod(shape) * _DEVICES_A_CHIP[target] >= devices:
            return f"{target}:{'x'.join(map(str, shape))}"
    raise DeviceError(
        f"a mesh of {devices} devices is larger than every {target} topology that can be compiled "
        "for here; use a smaller mesh under tpu-compile"
    )


def _shapes(dims: int) -> Iterator[tuple[int, ...]]:
    """Shapes with edges that are powers of two, none more than twice another, smallest first.

    None is smaller than a host: libtpu 0.0.48 refuses those.
    """
    edges = [1, 2, 4, _LARGEST]
    shapes = [
        shape
        for shape in itertools.product(edges, repeat=dims)
        if list(shape) == sorted(shape) and shape[-1] <= 2 * shape[0]
        if math.prod(shape) >= _CHIPS_A_HOST
    ]
    # (2, 2, 1) is how a host of v4, v5p and tpu7x is called; (1, 2, 2) is no topology.
    named = [tuple(reversed(shape)) if 1 in shape and dims == 3 else shape for shape in shapes]
    yield from sorted(named, key=lambda shape: (math.prod(shape), shape))
