"""The sizes of a kernel's blocks along the dims of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pallas_sim.compat.grids import GridFacts, grid_facts
from pytest_pallas.analysis.kernel_calls import KernelCall

#: A block of so many elements or more along a dim is not worth two of them.
MOST = 1024


def tiles_of(kernels: Iterable[KernelCall], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The blocks of kernels along each dim.

    Args:
      kernels: of one call.
      sizes: of dims of that call, all different: axes of this size are taken for the dim.

    Returns:
      The sizes of blocks by dim, ascending; dims that are never cut are left out. Where blocks say
      nothing, since the kernel copies by itself, the largest size of its scratch memory that
      divides the dim and is no dim itself is taken.
    """
    names = {size: name for name, size in sizes.items()}
    found: dict[str, set[int]] = {}
    for kernel in kernels:
        if kernel.eqn.primitive.name != "pallas_call":
            continue
        facts = grid_facts(kernel.eqn)
        pairs = list(_blocks(facts)) or list(_scratch(facts, names))
        for size, tile in pairs:
            if size in names and 1 < tile < size and tile <= MOST:
                found.setdefault(names[size], set()).add(tile)
    return {name: tuple(sorted(tiles)) for name, tiles in found.items()}


def _blocks(facts: GridFacts) -> Iterator[tuple[int, int]]:
    """The size of each axis that is cut, with that of a block."""
    for block in (*facts.inputs, *facts.outputs):
        for size, (_, tile, _) in zip(block.shape, block.dims, strict=True):
            if tile < size:
                yield size, tile


def _scratch(facts: GridFacts, names: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """The size of each axis that copies may cut, with that of a copy."""
    axes = {size for block in (*facts.inputs, *facts.outputs) for size in block.shape} & set(names)
    for _, aval in facts.scratch:
        shape = getattr(aval, "shape", ())
        copied = [size for size in shape if size not in names]
        for size in axes - set(shape):
            tiles = [tile for tile in copied if tile > 1 and size % tile == 0]
            if tiles:
                yield size, max(tiles)
