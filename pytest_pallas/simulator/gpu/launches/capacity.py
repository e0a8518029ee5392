"""Shared memory that a kernel needs and a chip does not have: a launch of it fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_pallas.compat.resources import requested_shared_bytes
from pytest_pallas.devices.capacities import itemsize
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.findings import Finding
from pytest_pallas.simulator.concurrency.launches import most_at_a_time
from pytest_pallas.simulator.gpu.launches.scopes import aligned, is_shared_array
from pytest_pallas.simulator.gpu.layouts import made_by

_ESTIMATED = " by an estimate, as no compiler for GPUs has counted it"


def smem_findings(
    jaxpr: Any, mesh: Any, params: Any, target: str, name: str, line: str
) -> Iterator[Finding]:
    """What a block of a Mosaic GPU kernel needs beyond the shared memory of a chip.

    Args:
      jaxpr: body of the kernel.
      mesh: of its blocks, JAX's.
      params: compiler parameters, or None.
      target: name of the chip.
      name: of the kernel.
      line: of its call.
    """
    needed = requested_shared_bytes(jaxpr, mesh, params)
    if needed is None or target not in GPUS or needed <= GPUS[target].shared_per_block:
        return
    yield shared_memory_excess(needed, target, most_at_a_time(jaxpr, _taken), name, line)


def shared_memory_excess(
    needed: int,
    target: str,
    parts: Sequence[tuple[str, int]],
    name: str,
    line: str,
    *,
    estimated: bool = False,
) -> Finding:
    """The finding that a block needs more shared memory than a chip has.

    Args:
      needed: bytes.
      target: name of the chip.
      parts: names and bytes of what takes them.
      name: of the kernel.
      line: of its call.
      estimated: whether the number is an estimate.
    """
    largest = sorted(parts, key=lambda part: -part[1])[:3]
    shown = ", ".join(f"{what} {size / 1024:.1f} KiB" for what, size in largest)
    counted = _ESTIMATED if estimated else ""
    return Finding(
        kind="capacity",
        message=(
            f"a block takes {needed:,} bytes of shared memory{counted}, and a block of {target} "
            f"can have {GPUS[target].shared_per_block:,}: {shown}. Choose smaller blocks, or fewer "
            "stages."
        ),
        kernel=name,
        line=line,
        ref=largest[0][0] if largest else "",
    )


def _taken(eqn: Any) -> list[tuple[str, int]]:
    """What an equation takes of the shared memory of a block: names and bytes."""
    made = [(name, aval) for name, aval in made_by(eqn) if is_shared_array(aval)]
    return [(name or "scoped memory", aligned(_size(aval))) for name, aval in made]


def _size(aval: Any) -> int:
    size = 1.0 if str(aval.dtype) == "bool" else itemsize(aval.dtype)
    return math.ceil(math.prod(aval.shape) * size)
