"""Warnings of JAX about a kernel that whoever tests the kernel knows, or cannot help."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def expected_warnings() -> Generator[None]:
    """Ignore them while a kernel is lowered, also where warnings are errors."""
    with warnings.catch_warnings():
        # JAX 0.12 deprecates its Triton route, which every pallas_call of pl alone takes on a GPU.
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        # Of SparseCores: pltpu.sync_copy and emit_pipeline pass a semaphore themselves.
        warnings.filterwarnings("ignore", message="Destination semaphore is ignored")
        yield
