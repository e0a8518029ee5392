"""Private names of JAX: accesses of the GPU interpreter before the beginning of a buffer.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def negative_indices_refused() -> Generator[None]:
    """Let the GPU interpreter find an index below 0 out of bounds.

    It keeps buffers in arrays of numpy, where -1 is the last element: a ring without its modulus
    is right there alone. A chip reads what is before the buffer, and a TMA zeros.
    """
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.shared_memory")
    buffer = module.Buffer
    normalized = buffer._normalize_range

    def checked(self: Any, where: tuple[Any, ...]) -> Any:
        starts = (each.start if isinstance(each, slice) else each for each in where)
        if any(start is not None and start < 0 for start in starts):
            raise IndexError(f"Range {where} begins before the buffer.")
        return normalized(self, where)

    buffer._normalize_range = checked
    try:
        yield
    finally:
        buffer._normalize_range = normalized
