"""Memory that a kernel needs and a chip does not have: Mosaic rejects such a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from pytest_pallas.compat.avals import space_of
from pytest_pallas.compat.grids import GridFacts
from pytest_pallas.compat.jaxprs import is_literal, open_jaxpr
from pytest_pallas.devices.capacities import Excess, OperandMemory, padded, smem_excess, vmem_excess
from pytest_pallas.findings import Finding
from pytest_pallas.simulator.grids.kernels import BlockWindow, PreparedKernel
from pytest_pallas.simulator.values import is_key_dtype


def capacity_findings(kernel: PreparedKernel, target: str) -> Iterator[Finding]:
    """What a kernel needs beyond the VMEM and SMEM of a chip.

    Temporaries of the body are not counted, so a kernel without a finding may need too much, too.

    Args:
      kernel: the kernel.
      target: name of the chip.
    """
    limit = getattr(kernel.facts.params, "vmem_limit_bytes", None)
    excesses = (
        vmem_excess(list(_taken(kernel, ("default", "vmem"))), target, limit),
        smem_excess([*_scalars(kernel), *_taken(kernel, ("smem",))], target),
    )
    for excess in excesses:
        if excess is not None:
            yield _finding(kernel, excess)


def _finding(kernel: PreparedKernel, excess: Excess) -> Finding:
    return Finding(
        kind="capacity",
        message=f"{excess.message} {excess.remedy}",
        kernel=kernel.name,
        line=kernel.line,
        ref=excess.largest,
    )


def _taken(kernel: PreparedKernel, spaces: tuple[str, ...]) -> Iterator[OperandMemory]:
    """What blocks and scratch take of a memory space; "default" is that of blocks."""
    facts = kernel.facts
    for window in kernel.windows:
        block = window.facts
        if block.space in spaces:
            count = block.buffers or (2 if window.ahead and _changes(window, facts) else 1)
            yield OperandMemory(block.name, padded(window.shape, block.dtype), count)
    for name, aval in facts.scratch:
        if space_of(aval) in spaces and hasattr(aval, "shape"):
            yield OperandMemory(name, padded(aval.shape, aval.dtype), 1)


def _scalars(kernel: PreparedKernel) -> Iterator[OperandMemory]:
    """What is prefetched: it is in SMEM as a whole."""
    operands = kernel.equation.invars
    for position, name in zip(kernel.facts.scalars, kernel.names, strict=False):
        aval: Any = operands[position].aval
        if not is_key_dtype(aval.dtype):
            yield OperandMemory(name, padded(aval.shape, aval.dtype), 1)


def _changes(window: BlockWindow, facts: GridFacts) -> bool:
    """Whether a block may be another one in the next program: it depends on where that is."""
    if prod(size or 2 for size in facts.grid) < 2:
        return False
    jaxpr = open_jaxpr(window.facts.index_map)[0]
    sizes = dict(zip(jaxpr.invars, facts.grid, strict=False))
    moving = {variable for variable, size in sizes.items() if size != 1}

    def moves(atom: Any) -> bool:
        return not is_literal(atom) and atom in moving

    for eqn in jaxpr.eqns:
        if any(map(moves, eqn.invars)):
            moving.update(eqn.outvars)
    return any(map(moves, jaxpr.outvars))
