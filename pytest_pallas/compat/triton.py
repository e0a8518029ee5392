"""Private names of JAX: how a ``pallas_call`` is lowered to Triton, and what its primitives say."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from pytest_pallas.compat.windows import Operand


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


def atomic_parts(params: Any, count: int) -> tuple[Any, Any, Any, Any]:
    """Reference, transforms, value and mask of an ``atomic_rmw``.

    Each is a ``windows.Operand`` where it is an operand, or None. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      params: of the equation.
      count: of its operands.
    """
    util = importlib.import_module("jax.tree_util")
    operands = [Operand(number) for number in range(count)]
    ref, transforms, value, mask = util.tree_unflatten(params["args_tree"], operands)
    return ref, transforms, value, mask
