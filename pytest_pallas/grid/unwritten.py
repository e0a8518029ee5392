"""Find the grid program that wrote an element, and memory that nothing may have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallas_sim.traces import BlockFacts, read_inputs
from pytest_pallas.grid.kernel_calls import KernelCall

if TYPE_CHECKING:
    from pytest_pallas.grid.model import GridCall, GridWindow

#: Grid points, in the order in which they run.
Programs = list[tuple[int, ...]]


def is_tiled(call: KernelCall) -> bool:
    """Return whether a ``pallas_call`` has a grid, or blocks smaller than their arrays."""
    facts = call.facts
    return facts is not None and (
        bool(facts.grid)
        or any(
            kind == "Squeezed" or size != length
            for block in (*facts.inputs, *facts.outputs)
            for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
        )
    )


def overhanging_blocks(call: KernelCall) -> list[str]:
    """Name the blocks of a ``pallas_call`` that hang over the edge of their array.

    The kernel gets uninitialized memory there. Empty for other kernels, which get their refs from
    their caller.
    """
    facts = call.facts
    if facts is None:
        return []
    named = [(f"input {number}", block) for number, block in enumerate(facts.inputs)]
    named += [(f"output {number}", block) for number, block in enumerate(facts.outputs)]
    return [
        f"a block of {operand} hangs over its edge" for operand, block in named if _overhangs(block)
    ]


def unwritten_memory(call: KernelCall) -> list[str]:
    """Name the memory that a kernel could read before anything has written it.

    It is scratch, memory that the body allocates, and outputs that the body reads; not what lies
    beyond the edge of an array (see ``overhanging_blocks``). Kernels other than a ``pallas_call``
    get their refs from their caller, and count.
    """
    facts = call.facts
    if facts is None:
        return ["refs that its caller made"]
    import jax

    memory: list[str] = []
    if any(not jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended) for _, aval in facts.scratch):
        memory.append("scratch")
    if call.primitives & {"run_scoped", "empty_ref"}:
        memory.append("memory that the body allocates")
    first, read = len(facts.scalars) + len(facts.inputs), read_inputs(call.eqn.params["jaxpr"])
    return memory + [f"output {n}" for n in range(len(facts.outputs)) if first + n in read]


def _overhangs(block: BlockFacts) -> bool:
    """Return whether the last block along an axis may reach beyond the array.

    Windows in elements may start anywhere, and have padding of their own.
    """
    return any(
        kind != "Squeezed" and (kind != "Blocked" or (size > 0 and length % size > 0))
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    )


def describe_writer(
    call: KernelCall, output: int, index: Sequence[int], shape: Sequence[int]
) -> str:
    """Say which block has an element and which grid program wrote it; "" if that is not known.

    Args:
      call: a ``pallas_call``; other kernels write through refs, and nothing is known of them.
      output: the position of the output among the kernel's outputs.
      index: the element, an index into the whole output.
      shape: of the output.
    """
    facts = call.facts
    if facts is None or not facts.grid:
        return ""  # one program, or refs
    writers = writers_of(call, output, index)
    if writers is None:
        return ""
    sizes, block, programs = writers
    region = ", ".join(
        f"{b * n}:{min((b + 1) * n, dim)}" for b, n, dim in zip(block, sizes, shape, strict=True)
    )
    kernel = f"{call.name} (grid {facts.grid})"
    if not programs:
        return f"no program of {kernel} writes its block {block} = [{region}]"
    return f"written by {_points(programs)} of {kernel}, output block {block} = [{region}]"


def writers_of(
    call: KernelCall, output: int, index: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], Programs] | None:
    """Return the shape and index of the block that has an element, and the block's programs.

    None where the call does not show that: with a dynamic grid, an index map that reads prefetched
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
    """Return the inputs, by number, of which an element's writers have blocks beyond an edge.

    Empty where ``writers_of`` finds no writer; the arguments are the same.
    """
    written = _written(call, output, index) if call.facts and call.facts.grid else None
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
    """Return the grid of a call, the window of an output, and the writers of an element."""
    import numpy as np

    from pytest_pallas.grid.model import read_call

    facts = call.facts
    assert facts is not None
    grid = read_call(call, [None] * facts.grid.count(None), [None] * len(facts.scalars), "tpu")
    window = grid.windows[len(facts.inputs) + output]
    if not grid.complete or not window.uniform or window.starts is None:
        return None
    ends = (window.starts + window.lengths).T
    hit = ((index >= window.starts.T) & (index < ends)).all(axis=1)
    return grid, window, np.flatnonzero(hit).tolist()


def _points(programs: Programs) -> str:
    """Write grid points as one pattern, in which axes along which they differ are ``lo..hi``."""
    parts: list[str] = []
    for axis in zip(*programs, strict=True):
        low, high = min(axis), max(axis)
        parts.append(str(low) if low == high else f"{low}..{high}")
    noun = "program" if len(programs) == 1 else f"{len(programs)} programs"
    return f"{noun} ({', '.join(parts)})"
