"""Which grid program wrote an element of a kernel's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_pallas import compat
from pytest_pallas.analysis.kernel_calls import KernelCall


def describe_writer(
    call: KernelCall, output: int, index: Sequence[int], shape: Sequence[int]
) -> str:
    """One sentence on the block and the grid program that wrote an element, or "".

    Args:
      call: a ``pallas_call``; other kernels write through refs, and nothing is known of them.
      output: the position of the output among the kernel's outputs.
      index: the element, an index into the whole output.
      shape: of the output.
    """
    if call.eqn.primitive.name != "pallas_call" or not call.eqn.params["grid_mapping"].grid:
        return ""  # one program, or refs
    found = compat.block_programs(call.eqn, output, index)
    if found is None:
        return ""
    sizes, block, programs = found
    region = ", ".join(
        f"{b * n}:{min((b + 1) * n, dim)}" for b, n, dim in zip(block, sizes, shape, strict=True)
    )
    grid = tuple(call.eqn.params["grid_mapping"].grid)
    if not programs:
        return f"no program of {call.name} (grid {grid}) writes its block {block} = [{region}]"
    return (
        f"written by {_points(programs)} of {call.name} (grid {grid}), "
        f"output block {block} = [{region}]"
    )


def _points(programs: Sequence[tuple[Any, ...]]) -> str:
    """Grid points as one pattern: axes along which they differ become ``lo..hi``."""
    parts: list[str] = []
    for axis in zip(*programs, strict=True):
        low, high = min(axis), max(axis)
        parts.append(str(low) if low == high else f"{low}..{high}")
    noun = "program" if len(programs) == 1 else f"{len(programs)} programs"
    return f"{noun} ({', '.join(parts)})"
