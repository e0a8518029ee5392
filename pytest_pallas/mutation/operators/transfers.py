"""Asynchronous copies, semaphores, barriers: left out, shared, doubled, to the wrong device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.operands import operand_groups
from pytest_pallas.mutation.rewriting import equations_of

#: What waits, by primitive. ``wgmma_wait`` is not among them: no interpreter can see it missing.
_WAITS: Mapping[str, str] = {
    "dma_wait": "dropped",
    "semaphore_wait": "dropped",
    "barrier_wait": "dropped",
    "wait_smem_to_gmem": "dropped",
    "wait_gmem_to_smem": "dropped",
}
_STARTS = frozenset({"dma_start", "copy_gmem_to_smem", "copy_smem_to_gmem", "async_store_smem"})
_SIGNALS = frozenset({"semaphore_signal", "barrier_arrive"})
_BARRIERS = frozenset({"barrier", "barrier_arrive_and_wait", "commit_smem", "cluster_barrier"})


@operator(
    "wait",
    mistake="a copy, semaphore or barrier without a wait",
    before="copy.wait()",
    after="",
)
def wait(at: EquationSite) -> Iterator[Change]:
    """A wait is left out."""
    if at.name in _WAITS:
        yield Change(_WAITS[at.name], lambda: Replacement(), part=at.name)


@operator(
    "start",
    mistake="a copy that is never started",
    before="copy.start()",
    after="",
)
def start(at: EquationSite) -> Iterator[Change]:
    """A copy that is waited for and never started."""
    if at.name in _STARTS:
        yield Change("dropped", lambda: Replacement(), part=at.name)


@operator(
    "semaphore",
    mistake="one semaphore for all copies",
    before="sems.at[slot]",
    after="sems.at[0]",
)
def semaphore(at: EquationSite) -> Iterator[Change]:
    """Two copies that share a semaphore."""
    if at.name not in ("dma_start", "dma_wait"):
        return
    groups = operand_groups(at.eqn)
    names = ("target_semaphore", "source_semaphore")
    for name in names[:1] if at.name == "dma_wait" else names:  # a wait looks at one of them
        positions = groups.get(name, [])
        if len(positions) != 2:  # the array of semaphores, and an index
            continue
        ref, index = (at.eqn.invars[position] for position in positions)
        shape = getattr(ref.aval, "shape", ())
        if len(shape) != 1 or shape[0] < 2 or getattr(index.aval, "shape", None) != ():
            continue
        yield Change(
            "the first for all",
            lambda position=positions[1]: _with_operand(at, position, lambda i: jnp.zeros_like(i)),
            part=f"{at.name} {name}",
        )


@operator(
    "signal",
    mistake="a signal left out, or given twice",
    before="pl.semaphore_signal(ready)",
    after="",
)
def signal(at: EquationSite) -> Iterator[Change]:
    """A signal left out, or given twice."""
    if at.name in _SIGNALS:
        yield Change("dropped", lambda: Replacement(), part=at.name)
        yield Change("doubled", lambda: Replacement([at.eqn, at.eqn], []), part=at.name)


@operator(
    "device",
    mistake="a copy or signal to the device after the right one",
    before="device_id=right",
    after="device_id=(right + 1) % n",
)
def device(at: EquationSite) -> Iterator[Change]:
    """A message to the device after the right one."""
    positions = operand_groups(at.eqn).get("device", [])
    if at.name not in ("dma_start", "semaphore_signal") or not positions:
        return
    total = 1
    for size in at.kernel.axes.values():
        total *= size
    if total < 2:
        return
    sizes = list(at.kernel.axes.values())
    for number, position in enumerate(positions):
        # One number counts all devices, or those of the only axis; several are one for each axis.
        size = total if len(positions) == 1 else sizes[number] if number < len(sizes) else 0
        if size < 2 or getattr(at.eqn.invars[position].aval, "shape", None) != ():
            continue
        yield Change(
            "the next one",
            lambda position=position, size=size: _with_operand(
                at, position, lambda i: (i + 1) % size
            ),
            part=f"{at.name} {number}",
        )


@operator(
    "barrier",
    mistake="a barrier left out",
    before="plsc.subcore_barrier()",
    after="",
)
def barrier(at: EquationSite) -> Iterator[Change]:
    """The wait for the others is left out."""
    if at.name in _BARRIERS:
        yield Change("dropped", lambda: Replacement(), part=at.name)


def _with_operand(at: EquationSite, position: int, function: Any) -> Replacement:
    operands = list(at.eqn.invars)
    old = operands[position]
    eqns, [operands[position]] = equations_of(
        lambda i: (function(i).astype(i.dtype),), [old], at.eqn
    )
    new = at.eqn.replace(invars=operands)
    return Replacement([*eqns, new], list(new.outvars))
