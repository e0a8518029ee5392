"""Shared memory that a kernel needs and a chip does not have: a launch of it fails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pytest_pallas.compat.avals import barrier_facts
from pytest_pallas.devices.capacities import itemsize
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.findings import Finding
from pytest_pallas.simulator.concurrency.launches import equations, most_at_a_time
from pytest_pallas.simulator.gpu.launches.scopes import aligned, is_shared_array
from pytest_pallas.simulator.gpu.layouts import made_by

#: Bytes of a barrier.
_BARRIER = 8


def smem_findings(jaxpr: Any, params: Any, target: str, name: str, line: str) -> Iterator[Finding]:
    """What a block needs beyond the shared memory of a chip.

    Counted as JAX's lowering does (``_estimate_resources`` in ``mosaic_gpu/lowering.py``): what
    scopes around each other make, with the memory that reductions between warps are given.

    Args:
      jaxpr: body of the kernel.
      params: compiler parameters, or None.
      target: name of the chip.
      name: of the kernel.
      line: of its call.
    """
    chip = GPUS.get(target)
    if chip is None:
        return
    scratch = getattr(params, "reduction_scratch_bytes", 128 * 4 * 4)
    parts = most_at_a_time(jaxpr, lambda eqn: _taken(eqn, scratch))
    needed = sum(size for _, size in parts)
    barriers = _BARRIER * _barriers(jaxpr)
    if needed + barriers <= chip.shared_per_block:
        return
    largest = sorted(parts, key=lambda part: -part[1])[:3]
    shown = ", ".join(f"{what} {size / 1024:.1f} KiB" for what, size in largest)
    yield Finding(
        kind="capacity",
        message=(
            f"a block takes {(needed + barriers) / 1024:.1f} KiB of shared memory, and {target} "
            f"gives it {chip.shared_per_block / 1024:.0f} KiB: {shown}. Choose smaller blocks, or "
            "fewer stages."
        ),
        kernel=name,
        line=line,
        ref=largest[0][0] if largest else "",
    )


def _taken(eqn: Any, scratch: int) -> list[tuple[str, int]]:
    """What an equation takes of the shared memory of a block: names and bytes."""
    if eqn.primitive.name.removeprefix("mosaic_gpu_") in _REDUCING:
        return [("reductions", scratch)]
    made = [(name, aval) for name, aval in made_by(eqn) if is_shared_array(aval)]
    return [(name or "scoped memory", aligned(_size(aval))) for name, aval in made]


_REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def _barriers(jaxpr: Any) -> int:
    """How many barriers a block has."""
    avals = [aval for eqn in equations(jaxpr) for _, aval in made_by(eqn)]
    return sum(
        math.prod(aval.shape)
        for aval in avals
        if barrier_facts(getattr(aval, "dtype", None)) is not None
    )


def _size(aval: Any) -> int:
    size = 1.0 if str(aval.dtype) == "bool" else itemsize(aval.dtype)
    return math.ceil(math.prod(aval.shape) * size)
