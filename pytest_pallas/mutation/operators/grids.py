"""The call of a kernel: its grid, its index maps, its aliases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_sim.compat.grids import BlockFacts, GridFacts, grid_facts
from pallas_sim.compat.jaxprs import is_literal
from pallas_sim.compat.source import Spot, home_of, is_of_jax
from pytest_pallas.mutation.canonical import canonical
from pytest_pallas.mutation.declaring import call_operator
from pytest_pallas.mutation.model import Change, KernelSite
from pytest_pallas.mutation.rewriting import guarded, with_index_map


@call_operator(
    "step",
    mistake="the first or the last step of a grid is left out",
    before="grid=(n,)",
    after="grid=(n - 1,)",
)
def step(kernel: KernelSite) -> Iterator[Change]:
    """The first or the last program along an axis of the grid does nothing."""
    for axis, size in _axes(kernel):
        for which, words in ((0, "first"), (-1, "last")):
            if size is None or size > 1:
                yield Change(
                    f"the {words} dropped",
                    lambda axis=axis, which=which: _without(kernel, axis, which),
                    part=f"grid axis {axis}",
                )


@call_operator(
    "overhang",
    mistake="the partial block at an edge is left out",
    before="grid=(pl.cdiv(n, block),)",
    after="grid=(n // block,)",
)
def overhang(kernel: KernelSite) -> Iterator[Change]:
    """A grid that leaves out the block that hangs over an edge, as ``n // block`` does."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    for axis, _ in _axes(kernel):
        if any(_overhangs(block, facts, axis) for block in (*facts.inputs, *facts.outputs)):
            yield Change(
                "the partial block dropped",
                lambda axis=axis: _without(kernel, axis, -1),
                part=f"grid axis {axis}",
            )


@call_operator(
    "index_map",
    mistake="components of an index map swapped, one further, or constant",
    before="lambda i, j: (i, j)",
    after="lambda i, j: (j, i)",
)
def index_map(kernel: KernelSite) -> Iterator[Change]:
    """Components of an index map swapped, one further, or constant."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    for position, block in enumerate((*facts.inputs, *facts.outputs)):
        counts = _counts(block)
        outs = list(getattr(block.index_map, "jaxpr", block.index_map).outvars)
        if len(outs) != len(counts):
            continue
        yield from _map_changes(kernel, position, counts, outs, block.name)


@call_operator(
    "alias",
    mistake="an output that does not share an input's memory, or shares it by mistake",
    before="input_output_aliases={0: 0}",
    after="",
)
def alias(kernel: KernelSite) -> Iterator[Change]:
    """Memory of an input that an output does not share, or shares by mistake."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    pairs = tuple(kernel.eqn.params["input_output_aliases"])
    for pair in pairs:
        rest = tuple(each for each in pairs if each is not pair)
        yield Change(
            "removed",
            lambda rest=rest: _with_aliases(kernel, rest),
            part=f"input {int(pair[0])} output {int(pair[1])}",
        )
    facts = grid_facts(kernel.eqn)
    scalars = len(facts.scalars)
    taken = {int(each[0]) for each in pairs}, {int(each[1]) for each in pairs}
    for source, block in enumerate(facts.inputs):
        for target, out in enumerate(facts.outputs):
            if source + scalars in taken[0] or target in taken[1]:
                continue
            if (block.shape, block.dtype, block.dims) != (out.shape, out.dtype, out.dims):
                continue
            if _read_first(block, out, facts.grid):
                continue
            yield Change(
                "added",
                lambda s=source + scalars, t=target: _with_aliases(kernel, (*pairs, (s, t))),
                part=f"input {source + scalars} output {target}",
            )


def _read_first(block: BlockFacts, out: BlockFacts, grid: Sequence[int | None]) -> bool:
    """Whether each program reads a block of an input just before it writes that of the output.

    Then both may share memory, and nothing changes.
    """
    whole = block.space in ("any", "hbm") or out.space in ("any", "hbm")
    single = {axis: 0 for axis, size in enumerate(grid) if size == 1}
    return not whole and canonical(block.index_map, single) == canonical(out.index_map, single)


def _axes(kernel: KernelSite) -> Iterator[tuple[int, int | None]]:
    """The axes that the body counts, and their sizes."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    own = [size for axis, size in enumerate(facts.grid) if axis not in facts.vmapped]
    yield from enumerate(own)


def _without(kernel: KernelSite, axis: int, which: int) -> Any:
    def runs() -> Any:
        return pl.program_id(axis) != (0 if which == 0 else pl.num_programs(axis) - 1)

    return guarded(kernel.eqn, runs, kernel.axes)


def _overhangs(block: BlockFacts, facts: GridFacts, axis: int) -> bool:
    """Whether the last block along a grid axis is a partial one, where that is easy to say."""
    grid = [a for a in range(len(facts.grid)) if a not in facts.vmapped]
    inner = getattr(block.index_map, "jaxpr", block.index_map)
    variable = inner.invars[grid[axis]]
    return any(
        out is variable and kind == "Blocked" and size and length % size
        for out, (kind, size, _), length in zip(
            inner.outvars, block.dims, block.shape, strict=False
        )
    )


def _counts(block: BlockFacts) -> list[int]:
    """How many blocks there are along each axis; 0 where it does not count in blocks."""
    return [
        -(-length // max(size, 1)) if kind in ("Blocked", "Squeezed") else 0
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    ]


def _map_changes(
    kernel: KernelSite, position: int, counts: list[int], outs: list[Any], name: str
) -> Iterator[Change]:
    part = f"index map of {name}"
    home = _line_of(kernel, position)
    for axis, count in enumerate(counts):
        if count < 2:
            continue

        def further(*old: Any, axis: int = axis, count: int = count) -> list[Any]:
            new = list(old)
            new[axis] = ((old[axis] + 1) % count).astype(old[axis].dtype)
            return new

        def constant(*old: Any, axis: int = axis) -> list[Any]:
            new = list(old)
            new[axis] = jnp.zeros_like(old[axis])
            return new

        yield _mapped(kernel, position, "one further", f"{part}, axis {axis}", further, home)
        if not is_literal(outs[axis]):
            yield _mapped(kernel, position, "constant", f"{part}, axis {axis}", constant, home)
    for axis in range(len(counts) - 1):
        if counts[axis] == counts[axis + 1] < 2 or 0 in counts[axis : axis + 2]:
            continue
        if outs[axis].aval.dtype != outs[axis + 1].aval.dtype:
            continue

        def swapped(*old: Any, axis: int = axis) -> list[Any]:
            new = list(old)
            # Kept within the array: beyond it, every interpreter would say so at once.
            new[axis] = jnp.minimum(old[axis + 1], counts[axis] - 1).astype(old[axis].dtype)
            new[axis + 1] = jnp.minimum(old[axis], counts[axis + 1] - 1).astype(old[axis].dtype)
            return new

        axes = f"{part}, axes {axis}, {axis + 1}"
        yield _mapped(kernel, position, "swapped", axes, swapped, home)


def _line_of(kernel: KernelSite, position: int) -> Spot | None:
    """Where an index map is written, if the kernel has one."""
    block = kernel.eqn.params["grid_mapping"].block_mappings[position]
    name, file, line = home_of(block.index_map_jaxpr)
    if not line or is_of_jax(block.index_map_jaxpr):
        return None
    return Spot(file, line, 0, line, 0, name)


def _mapped(
    kernel: KernelSite, position: int, words: str, part: str, function: Any, home: Spot | None
) -> Change:
    return Change(
        words,
        lambda: with_index_map(kernel.eqn, position, function),
        part=part,
        place=home,
    )


def _with_aliases(kernel: KernelSite, pairs: tuple[Any, ...]) -> Any:
    return kernel.eqn.replace(params={**kernel.eqn.params, "input_output_aliases": pairs})
