"""Which grid program wrote an element of an output, and which elements none wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pallas_sim.traces import BlockFacts, grid_facts, read_inputs, sub_jaxprs
from pytest_pallas.grid.kernel_calls import KernelCall


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

    What a kernel finds there is uninitialized memory. Empty for other kernels, which get their refs
    from their caller.
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
    """Which memory the kernel of an equation could read before anything has written it, in words.

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
        kind != "Squeezed" and (kind != "Blocked" or (size > 0 and length % size > 0))
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    )


def _allocates(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in ("run_scoped", "empty_ref") or any(map(_allocates, sub_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


#: Grids of more programs than this are not searched.
_MOST_PROGRAMS = 65_536

#: Grid points, in the order in which they run.
Programs = list[tuple[int, ...]]


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
    found = writers_of(call, output, index)
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


def writers_of(
    call: KernelCall, output: int, index: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], Programs] | None:
    """The shape and index of the block that holds an element, and the programs that have it.

    None where that cannot be read off the call: a dynamic grid, an index map that reads prefetched
    scalars, element windows, or a large grid.

    Args:
      call: a ``pallas_call``.
      output: the position of the output among the kernel's outputs.
      index: the element, an index into the whole output.
    """
    import numpy as np

    from pytest_pallas.grid.scalars import mapped

    facts = grid_facts(call.eqn)
    block = facts.outputs[output]
    grid = [size for size in facts.grid if size is not None]
    if len(grid) != len(facts.grid) or math.prod(grid) > _MOST_PROGRAMS:
        return None
    if any(kind not in ("Blocked", "Squeezed") for kind, _, _ in block.dims):
        return None
    points = np.indices(grid).reshape(len(grid), -1).astype(np.int32)
    indices = mapped(block.index_map, points, [None] * len(facts.scalars), facts.vmapped)
    if indices is None:
        return None
    sizes = tuple(size for _, size, _ in block.dims)
    wanted = tuple(i // size for i, size in zip(index, sizes, strict=True))
    hit = np.ones(points.shape[1], bool)
    for found, number in zip(block.of_dims(indices), wanted, strict=True):
        hit &= np.asarray(found) == number
    return sizes, wanted, [tuple(int(i) for i in point) for point in points[:, hit].T]


def inputs_beyond_edges(
    call: KernelCall, output: int, index: Sequence[int]
) -> list[tuple[int, BlockFacts]]:
    """The inputs, by number, of which the writers of an element have blocks beyond an edge.

    Empty where ``writers_of`` finds no writer; the arguments are its.
    """
    import numpy as np

    from pytest_pallas.grid.scalars import mapped

    if call.eqn.primitive.name != "pallas_call" or not call.eqn.params["grid_mapping"].grid:
        return []
    written = writers_of(call, output, index)
    if written is None or not written[-1]:
        return []
    facts, points = grid_facts(call.eqn), np.array(written[-1], np.int32).T
    found: list[tuple[int, BlockFacts]] = []
    for number, block in enumerate(facts.inputs):
        if any(kind not in ("Blocked", "Squeezed") for kind, _, _ in block.dims):
            continue
        indices = mapped(block.index_map, points, [None] * len(facts.scalars), facts.vmapped)
        if indices is None:
            continue
        ends = [
            (np.asarray(at) + 1) * size > dim
            for at, (_, size, _), dim in zip(
                block.of_dims(indices), block.dims, block.shape, strict=True
            )
        ]
        if any(bool(end.any()) for end in ends):
            found.append((number, block))
    return found


def _points(programs: Programs) -> str:
    """Grid points as one pattern: axes along which they differ become ``lo..hi``."""
    parts: list[str] = []
    for axis in zip(*programs, strict=True):
        low, high = min(axis), max(axis)
        parts.append(str(low) if low == high else f"{low}..{high}")
    noun = "program" if len(programs) == 1 else f"{len(programs)} programs"
    return f"{noun} ({', '.join(parts)})"
