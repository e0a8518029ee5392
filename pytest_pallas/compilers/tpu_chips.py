"""TPU topologies to compile for, by chip and number of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pallas_sim.chips import TPUS
from pallas_sim.errors import DeviceError

_CHIPS_A_HOST = 4

#: Largest edge of the topologies that are tried.
_LARGEST = 8


def attributes(target: str) -> dict[str, int]:
    """What ``jax.Device`` has on a chip, beside what it has on a CPU.

    Args:
      target: name of the chip, such as ``"v6e"``.
    """
    return {"num_cores": TPUS[target].device_cores}


def topology(target: str, devices: int) -> str:
    """The name of the smallest topology of a chip with at least ``devices`` devices.

    Args:
      target: name of the chip, such as ``"v6e"``.
      devices: how many devices a program runs on.

    Raises:
      DeviceError: no topology that libtpu knows is large enough.
    """
    chip = TPUS[target]
    for shape in _shapes(chip.torus_dims):
        if math.prod(shape) * chip.devices >= devices:
            return f"{target}:{'x'.join(map(str, shape))}"
    raise DeviceError(
        f"a mesh of {devices} devices is larger than every {target} topology that can be compiled "
        "for here; use a smaller mesh under tpu-compile"
    )


def _shapes(dims: int) -> Iterator[tuple[int, ...]]:
    """Shapes with edges that are powers of two, none more than twice another, smallest first.

    None is smaller than a host: libtpu 0.0.48 rejects those.
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
