"""What a kernel could read before anybody has written it, in words."""

from __future__ import annotations

from typing import Any

from pytest_pallas.compat.grids import BlockFacts, grid_facts
from pytest_pallas.compat.jaxprs import read_inputs, sub_jaxprs


def has_blocks(eqn: Any) -> bool:
    """Whether a ``pallas_call`` has a grid, or blocks smaller than their arrays."""
    if eqn.primitive.name != "pallas_call":
        return False
    facts = grid_facts(eqn)
    return bool(facts.grid) or any(
        kind == "Squeezed" or size != length
        for block in (*facts.inputs, *facts.outputs)
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    )


def overhanging_blocks(eqn: Any) -> list[str]:
    """Which blocks of a ``pallas_call`` hang over the edge of their array, in words.

    What a kernel finds there nobody has written. Empty for other kernels, which get their refs from
    their caller.
    """
    if eqn.primitive.name != "pallas_call":
        return []
    facts = grid_facts(eqn)
    named = [(f"input {number}", block) for number, block in enumerate(facts.inputs)]
    named += [(f"output {number}", block) for number, block in enumerate(facts.outputs)]
    return [
        f"a block of {operand} hangs over its edge" for operand, block in named if _overhangs(block)
    ]


def unwritten_memory(eqn: Any) -> list[str]:
    """Which memory the kernel of an equation could read before anybody has written it, in words.

    Scratch, memory that the body allocates, and outputs that the body reads. Empty if there is none
    (but for what is beyond the edge of an array, see ``overhanging_blocks``). Kernels other than a
    ``pallas_call`` get their refs from their caller, and count.
    """
    if eqn.primitive.name != "pallas_call":
        return ["refs that its caller made"]
    import jax

    facts, body = grid_facts(eqn), eqn.params["jaxpr"]
    places: list[str] = []
    if any(not jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended) for _, aval in facts.scratch):
        places.append("scratch")
    if _allocates(body):
        places.append("memory that the body allocates")
    first, read = len(facts.scalars) + len(facts.inputs), read_inputs(body)
    places += [f"output {number}" for number in range(len(facts.outputs)) if first + number in read]
    return places


def _overhangs(block: BlockFacts) -> bool:
    """Whether the last block along an axis may reach beyond the array.

    Windows in elements may start anywhere, and have padding of their own.
    """
    return any(
        kind != "Squeezed" and (kind != "Blocked" or length % size)
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    )


def _allocates(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in ("run_scoped", "empty_ref") or any(map(_allocates, sub_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )
