"""Private names of JAX: the vector clocks of the TPU interpreter."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

#: How many DMAs have an entry of their own; the next one shares that of the first.
DMAS = 256


@contextmanager
def clocks_for_dmas() -> Generator[None]:
    """Give every DMA an entry of its own in the vector clocks, in the order in which they start.

    The interpreter draws one of as many entries as there are cores, without a seed: one, on a
    single device. Two DMAs that share an entry seem to follow each other, so that the races of the
    second one are missed, always or now and then. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    params: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.params")
    memory: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.shared_memory")
    numbers = itertools.count()  # `next` is atomic

    def size(self: Any, devices: int) -> int:
        return devices * self.num_cores_or_threads + DMAS

    def entry(self: Any) -> int:
        return self.num_cores + next(numbers) % (self.vector_clock_size - self.num_cores)

    owners = (
        (params.SharedInterpretParams, "get_vector_clock_size", size),
        (memory.SharedMemory, "get_random_virtual_device_id", entry),
    )
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in owners]
    for owner, name, new in owners:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)
