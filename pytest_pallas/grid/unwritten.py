"""Which grid program wrote an element of an output, and which elements none wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pallas_sim.traces import BlockFacts, grid_facts, read_inputs
from pytest_pallas.grid.kernel_calls import KernelCall, equations_inside


def is_tiled(eqn: Any) -> bool:
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
    inside = {inner.primitive.name for inner in equations_inside(eqn)}
    if inside & {"run_scoped", "empty_ref"}:
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


if TYPE_CHECKING:
    from pytest_pallas.grid.model import GridCall, GridWindow

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
    writers = writers_of(call, output, index)
    if writers is None:
        return ""
    sizes, block, programs = writers
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
    written = _written(call, output, index)
    if written is None:
        return None
    grid, window, hits = written
    block = tuple(i // size for i, size in zip(index, window.sizes, strict=True))
    return window.sizes, block, [grid.point(program) for program in hits]


def inputs_beyond_edges(
    call: KernelCall, output: int, index: Sequence[int]
) -> list[tuple[int, BlockFacts]]:
    """The inputs, by number, of which the writers of an element have blocks beyond an edge.

    Empty where ``writers_of`` finds no writer; the arguments are its.
    """
    if call.eqn.primitive.name != "pallas_call" or not call.eqn.params["grid_mapping"].grid:
        return []
    written = _written(call, output, index)
    if written is None:
        return []
    grid, _, hits = written
    return [
        (window.position, window.facts)
        for window in grid.windows
        if not window.output
        and window.uniform
        and window.starts is not None
        and (window.shape < (window.starts + window.lengths).T)[hits].any()
    ]


def _written(
    call: KernelCall, output: int, index: Sequence[int]
) -> tuple[GridCall, GridWindow, list[int]] | None:
    """The grid of a call, the window of an output, and the programs that write an element of it."""
    import numpy as np

    from pytest_pallas.grid.model import read_call

    facts = grid_facts(call.eqn)
    grid = read_call(call, [None] * facts.grid.count(None), [None] * len(facts.scalars), "tpu")
    window = grid.windows[len(facts.inputs) + output]
    if not grid.complete or not window.uniform or window.starts is None:
        return None
    ends = (window.starts + window.lengths).T
    hit = ((index >= window.starts.T) & (index < ends)).all(axis=1)
    return grid, window, np.flatnonzero(hit).tolist()


def _points(programs: Programs) -> str:
    """Grid points as one pattern: axes along which they differ become ``lo..hi``."""
    parts: list[str] = []
    for axis in zip(*programs, strict=True):
        low, high = min(axis), max(axis)
        parts.append(str(low) if low == high else f"{low}..{high}")
    noun = "program" if len(programs) == 1 else f"{len(programs)} programs"
    return f"{noun} ({', '.join(parts)})"
