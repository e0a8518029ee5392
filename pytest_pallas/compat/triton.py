"""Private names of JAX: what its Triton lowering does.

It can go with JAX 0.11. Probe: ``tests/unit/compat/test_public_names.py``.
"""

from __future__ import annotations

import functools
import importlib


@functools.cache
def masks_edges() -> bool:
    """Whether accesses to blocks that hang over the edge of their array are masked.

    JAX 0.12.0.1 masks them (``_compute_offsets_from_indices`` gives a mask with the offsets), and
    0.11.2 does not.
    """
    try:
        lowering = importlib.import_module("jax._src.pallas.triton.lowering")
    except ImportError:  # of a JAX without it there is nothing to follow
        return True
    return hasattr(lowering, "_compute_offsets_from_indices")
