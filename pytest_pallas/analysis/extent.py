"""Whether the kernels of a call do more than one step: what a check can show may need two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import open_jaxpr, sub_jaxprs
from pytest_pallas.analysis.kernel_calls import ASYNCHRONOUS, KernelCall


def one_program(kernels: Sequence[KernelCall]) -> str | None:
    """Why no kernel has a second program, in words; None if one has, or is meant to have one.

    A grid whose programs are all alike, since neither body nor blocks ask which one they are, is
    meant so. Kernels that are no ``pallas_call`` are not looked at.
    """
    reasons = [_one_program(kernel) for kernel in kernels]
    return None if not reasons or None in reasons else reasons[0]


def one_step(kernels: Sequence[KernelCall]) -> str | None:
    """Why no kernel does a second step, in words; None if one does, or is meant to do one.

    A step is a program of the grid, or a turn of a loop that starts copies or waits for them. What
    is copied in one step meets nothing of another.
    """
    reasons = [_one_step(kernel) for kernel in kernels]
    return None if not reasons or None in reasons else reasons[0]


def _one_program(kernel: KernelCall) -> str | None:
    if kernel.eqn.primitive.name != "pallas_call":
        return None
    facts = grid_facts(kernel.eqn)
    if not facts.grid or prod(size or 2 for size in facts.grid) != 1:
        return None
    maps = (block.index_map for block in (*facts.inputs, *facts.outputs))
    asks = "program_id" in kernel.primitives or any(map(_depends, maps))
    return f"{kernel.name} has one program: grid {facts.grid}" if asks else None


def _one_step(kernel: KernelCall) -> str | None:
    if kernel.eqn.primitive.name != "pallas_call":
        return None
    turns = [count for body in sub_jaxprs(kernel.eqn) for count in _turns(body)]
    if any(count != 1 for count in turns):
        return None
    program = _one_program(kernel)
    if program is not None:
        return program
    if turns and prod(size or 2 for size in grid_facts(kernel.eqn).grid) == 1:
        return f"the loop of {kernel.name} over its copies has one turn"
    return None


def _depends(index_map: Any) -> bool:
    """Whether the result of an index map depends on the grid point."""
    jaxpr, _ = open_jaxpr(index_map)
    return bool(jaxpr.eqns) or any(var in jaxpr.invars for var in jaxpr.outvars)


def _turns(jaxpr: Any) -> Iterator[int | None]:
    """How often each loop turns that has something asynchronous in it; None if nobody knows."""
    for eqn in jaxpr.eqns:
        inner = list(sub_jaxprs(eqn))
        if eqn.primitive.name in ("scan", "while") and any(map(_asynchronous, inner)):
            yield eqn.params.get("length")
        for each in inner:
            yield from _turns(each)


def _asynchronous(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in ASYNCHRONOUS or any(map(_asynchronous, sub_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )
