"""How many programs the grid of a kernel has, and which of them run in any order."""

from __future__ import annotations

import math
from typing import Any


def parallel_programs(eqn: Any) -> int:
    """How many programs of a ``pallas_call`` the TPU may run in any order: 1 where it is none.

    The product of the grid's dimensions whose semantics are parallel.
    """
    params, mapping = eqn.params.get("compiler_params"), eqn.params.get("grid_mapping")
    semantics = getattr(params, "dimension_semantics", None)
    if mapping is None or semantics is None:
        return 1
    grid = mapping.grid[len(mapping.grid) - len(semantics) :]
    sizes = [
        size
        for size, kind in zip(grid, semantics, strict=False)
        if getattr(kind, "value", kind) == "parallel" and isinstance(size, int)
    ]
    return math.prod(sizes)


def grid_programs(eqn: Any) -> int | None:
    """How many programs the grid of a ``pallas_call`` has; None if an operand says so.

    1 of what is none.
    """
    mapping = eqn.params.get("grid_mapping")
    if mapping is None:
        return 1
    sizes = list(mapping.grid)
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def has_semantics(eqn: Any) -> bool:
    """Whether a ``pallas_call`` says what each of its grid dimensions is."""
    return getattr(eqn.params.get("compiler_params"), "dimension_semantics", None) is not None


def has_parallel_dimension(eqn: Any) -> bool:
    """Whether a ``pallas_call`` has a grid dimension whose semantics are parallel, of any size."""
    semantics = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None)
    return any(getattr(kind, "value", kind) == "parallel" for kind in semantics or ())
