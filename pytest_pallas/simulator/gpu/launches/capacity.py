"""Shared memory that a kernel needs and a chip does not have: a launch of it fails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pytest_pallas.compat.avals import barrier_facts
from pytest_pallas.compat.jaxprs import argument_names, open_jaxpr, sub_jaxprs
from pytest_pallas.devices.capacities import itemsize
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.findings import Finding
from pytest_pallas.simulator.gpu.launches.scopes import aligned, is_shared_array

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
    needed, parts = _most(jaxpr, scratch)
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


def _most(jaxpr: Any, scratch: int) -> tuple[int, list[tuple[str, int]]]:
    """The most bytes that are taken at a time, and by what."""
    most: tuple[int, list[tuple[str, int]]] = (0, [])
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        within = max(
            (_most(inner, scratch) for inner in sub_jaxprs(eqn)),
            key=lambda each: each[0],
            default=(0, []),
        )
        if eqn.primitive.name.removeprefix("mosaic_gpu_") in _REDUCING:
            within = (scratch, [("reductions", scratch)])
        if eqn.primitive.name == "run_scoped":
            inner, _ = open_jaxpr(eqn.params["jaxpr"])
            names = argument_names(inner)
            own = [
                (name or "scoped memory", aligned(_size(var.aval)))
                for var, name in zip(inner.invars, names, strict=True)
                if is_shared_array(var.aval)
            ]
            within = (within[0] + sum(size for _, size in own), [*within[1], *own])
        most = max(most, within, key=lambda each: each[0])
    return most


_REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def _barriers(jaxpr: Any) -> int:
    count = 0
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        count += sum(_barriers(inner) for inner in sub_jaxprs(eqn))
        if eqn.primitive.name == "run_scoped":
            inner, _ = open_jaxpr(eqn.params["jaxpr"])
            for var in inner.invars:
                if barrier_facts(getattr(var.aval, "dtype", None)) is not None:
                    count += math.prod(var.aval.shape)
    return count


def _size(aval: Any) -> int:
    size = 1.0 if str(aval.dtype) == "bool" else itemsize(aval.dtype)
    return math.ceil(math.prod(aval.shape) * size)
