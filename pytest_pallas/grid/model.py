"""Index maps that are affine in the grid point, of which everything is known for any grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pallas_sim.traces import BlockFacts, GridFacts, grid_facts, open_jaxpr, sub_jaxprs
from pytest_pallas.grid.kernel_calls import KernelCall, called_jaxpr
from pytest_pallas.grid.scalars import Points, mapped


@dataclass(frozen=True)
class Affine:
    """``constant + sum(c * p)`` over the coordinates ``p`` of a grid point.

    Attributes:
      constant: what it is at the origin.
      coefficients: one for each dim of the grid.
    """

    constant: int
    coefficients: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the grid on which it depends."""
        return tuple(i for i, c in enumerate(self.coefficients) if c)

    def span(self, grid: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest value over a grid with at least one point."""
        ends = [c * (n - 1) for c, n in zip(self.coefficients, grid, strict=True)]
        low = self.constant + sum(e for e in ends if e < 0)
        return low, self.constant + sum(e for e in ends if e > 0)


def affine_outputs(index_map: Any, dims: int) -> list[Affine | None]:
    """The outputs of an index map that are affine in the grid point; None for the others.

    Args:
      index_map: its jaxpr.
      dims: how many dims the grid has.
    """
    jaxpr = getattr(index_map, "jaxpr", index_map)
    units = [Affine(0, tuple(int(i == d) for i in range(dims))) for d in range(dims)]
    return _outputs(jaxpr, [*units, *[None] * (len(jaxpr.invars) - dims)], dims)


def _outputs(jaxpr: Any, inputs: Sequence[Affine | None], dims: int) -> list[Affine | None]:
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> Affine | None:
        if not hasattr(var, "val"):
            return known.get(var)
        exact = var.aval.shape == () and var.aval.dtype.kind in "iu"
        return Affine(int(var.val), (0,) * dims) if exact else None

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        called = called_jaxpr(eqn)
        if called is not None:
            results = _outputs(called[0], operands, dims)
        else:
            results = [_applied(eqn.primitive.name, operands)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _applied(name: str, operands: Sequence[Affine | None]) -> Affine | None:
    if not operands or any(operand is None for operand in operands):
        return None
    first, *rest = [operand for operand in operands if operand is not None]
    if name in ("convert_element_type", "multiple_of", "copy", "broadcast_in_dim"):
        return first
    if name == "neg":
        return _scaled(first, -1)
    if name == "add":
        return _sum(first, rest[0])
    if name == "sub":
        return _sum(first, _scaled(rest[0], -1))
    if name == "mul" and not first.dims:
        return _scaled(rest[0], first.constant)
    if name == "mul" and not rest[0].dims:
        return _scaled(first, rest[0].constant)
    return None


def _scaled(affine: Affine, factor: int) -> Affine:
    return Affine(affine.constant * factor, tuple(c * factor for c in affine.coefficients))


def _sum(a: Affine, b: Affine) -> Affine:
    terms = zip(a.coefficients, b.coefficients, strict=True)
    return Affine(a.constant + b.constant, tuple(x + y for x, y in terms))


# A ``pallas_call`` as the analyses see it: its grid, and where each program's blocks lie.


#: Programs up to which a grid is looked at as a whole; of a larger one so many, the first.
MOST_PROGRAMS = 2**16

#: Memory spaces that hold whole arrays, which the body copies from and to by itself.
_WHOLE = frozenset({"any", "hbm", "host", "gmem", "semaphore"})


@dataclass(frozen=True)
class GridWindow:
    """The blocks of one operand.

    Attributes:
      name: of the body's parameter.
      position: among the inputs, or among the outputs.
      output: whether it is written.
      facts: what the ``pallas_call`` says of it.
      starts: int64[axes, programs], the first element of each program's block along each axis,
        counted from the beginning of the array; None where it is not known.
      lengths: int64[axes, programs] or int64[axes, 1], how many elements it has.
      alias: the name of the operand whose memory it shares, or "".
      unknown: why ``starts`` is None.
      affine: the index along each axis, in blocks, where it is affine in the grid point.
    """

    name: str
    position: int
    output: bool
    facts: BlockFacts = field(repr=False)
    starts: Points | None = field(repr=False)
    lengths: Points = field(repr=False)
    alias: str = ""
    unknown: str = ""
    affine: tuple[Affine | None, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.facts.shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of a block, for every axis of the array."""
        return tuple(size for _, size, _ in self.facts.dims)

    @property
    def whole(self) -> bool:
        """Whether there are no blocks: the body gets the array where it is."""
        return self.facts.space in _WHOLE

    @property
    def uniform(self) -> bool:
        """Whether blocks lie side by side, so that two of them are equal or disjoint."""
        return all(kind in ("Blocked", "Squeezed") for kind, _, _ in self.facts.dims)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks the array has along each axis, if they lie side by side."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.sizes, strict=True))

    @cached_property
    def distinct(self) -> tuple[Points, Points]:
        """Different blocks [axes, blocks] in order, and which of them each program has."""
        assert self.starts is not None
        axes, programs = self.starts.shape
        if not axes or not programs:
            return np.zeros((axes, min(programs, 1)), np.int64), np.zeros(programs, np.int64)
        blocks, which = np.unique(self.starts, axis=1, return_inverse=True)
        return blocks, which.reshape(-1)

    def region(self, program: int) -> str:
        """The elements of a program's block, such as ``[0:8, 128:256]``."""
        if self.starts is None:
            return "?"
        lengths = np.broadcast_to(self.lengths, self.starts.shape)
        return region(self.starts[:, program], lengths[:, program])


@dataclass(frozen=True)
class GridCall:
    """One ``pallas_call``.

    Attributes:
      call: the kernel.
      platform: ``"tpu"`` or ``"gpu"``.
      grid: its sizes; None where one is not known.
      semantics: one word for each dim of the grid.
      points: int32[dims, programs], the programs that are looked at, in order.
      complete: whether these are all of them.
      windows: the blocks of inputs and outputs.
      scalars: values of the prefetched operands, None where they are not known.
      facts: what the ``pallas_call`` says.
    """

    call: KernelCall
    platform: str
    grid: tuple[int | None, ...]
    semantics: tuple[str, ...]
    points: Points = field(repr=False)
    complete: bool
    windows: tuple[GridWindow, ...]
    scalars: tuple[Points | None, ...] = field(repr=False)
    facts: GridFacts = field(repr=False)

    @property
    def concurrent(self) -> tuple[int, ...]:
        """Dims of the grid whose programs may run at the same time, in any order."""
        return tuple(i for i, word in enumerate(self.semantics) if word in _CONCURRENT)

    @property
    def programs(self) -> int | None:
        """How many programs run; None if a size of the grid is not known."""
        sizes = [n for n in self.grid if n is not None]
        return math.prod(sizes) if len(sizes) == len(self.grid) else None

    @property
    def body(self) -> Any:
        """The kernel's jaxpr."""
        return self.call.eqn.params["jaxpr"]

    @cached_property
    def synchronizes(self) -> bool:
        """Whether programs may order themselves by atomics, as with a lock or a ticket."""
        return _has_atomics(self.body)

    def point(self, program: int) -> tuple[int, ...]:
        """The grid point of a program."""
        return tuple(int(i) for i in self.points[:, program])


_ATOMICS = frozenset({"atomic_rmw", "atomic_cas"})


def _has_atomics(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in _ATOMICS or any(map(_has_atomics, sub_jaxprs(eqn)))
        for eqn in open_jaxpr(jaxpr)[0].eqns
    )


_CONCURRENT = frozenset({"parallel", "core_parallel", "subcore_parallel", "vmapped", "concurrent"})


def region(starts: Iterable[int], lengths: Iterable[int]) -> str:
    """Elements in words, such as ``[0:8, 128:256]``; one of an axis is written alone."""
    parts = [
        str(int(s)) if n == 1 else f"{int(s)}:{int(s) + int(n)}"
        for s, n in zip(starts, lengths, strict=True)
    ]
    return f"[{', '.join(parts)}]"


def read_call(
    call: KernelCall,
    sizes: Sequence[int | None],
    scalars: Sequence[Points | None],
    platform: str,
) -> GridCall:
    """What a ``pallas_call`` does with its blocks.

    Args:
      call: the kernel.
      sizes: the sizes of dynamic dims, in order; None where they are not known.
      scalars: values of the prefetched operands; None where they are not known.
      platform: of kernels that do not show which platform they are written for.
    """
    facts = grid_facts(call.eqn)
    given = iter(sizes)
    grid = tuple(next(given) if n is None else n for n in facts.grid)
    platform = _platform(facts, platform)
    known = [1 if n is None else n for n in grid]
    count = math.prod(known)
    points = _first_points(known, min(count, MOST_PROGRAMS))
    partners = {("input", i): o for i, o in facts.aliases}
    partners |= {("output", o): i for i, o in facts.aliases}
    windows: list[GridWindow] = []
    for side, blocks, others in (
        ("input", facts.inputs, facts.outputs),
        ("output", facts.outputs, facts.inputs),
    ):
        for position, block in enumerate(blocks):
            partner = partners.get((side, position))
            # A prefetched operand may be aliased too, and is no input here.
            alias = others[partner].name if partner is not None and partner >= 0 else ""
            alias = alias or ("a prefetched operand" if partner is not None else "")
            windows.append(
                _window(block, position, side == "output", points, scalars, facts, alias)
            )
    return GridCall(
        call=call,
        platform=platform,
        grid=grid,
        semantics=_semantics(facts, len(grid), platform),
        points=points,
        complete=None not in grid and count <= MOST_PROGRAMS,
        windows=tuple(windows),
        scalars=tuple(scalars),
        facts=facts,
    )


def _first_points(grid: Sequence[int], count: int) -> Points:
    """The first ``count`` points of a grid in the order of execution, the last dim fastest."""
    rest, coordinates = np.arange(count), list[Points]()
    for size in reversed(grid):
        coordinates.append(rest % max(size, 1))
        rest = rest // max(size, 1)
    return np.array(coordinates[::-1], np.int32).reshape(len(grid), count)


def _window(
    block: BlockFacts,
    position: int,
    output: bool,
    points: Points,
    scalars: Sequence[Points | None],
    facts: GridFacts,
    alias: str,
) -> GridWindow:
    sizes = np.array([[size] for _, size, _ in block.dims], np.int64).reshape(-1, 1)
    starts: Points | None = None
    lengths, unknown = sizes, ""
    affine: tuple[Affine | None, ...] = ()
    indices = mapped(block.index_map, points, scalars, facts.vmapped)
    if any(kind == "Indirect" for kind, _, _ in block.dims):
        unknown = "its blocks are gathered"
    elif indices is None:
        unknown = "its index map depends on values that are not known here"
    else:
        starts, lengths = _placed(block, indices, points.shape[1])
    if all(kind in ("Blocked", "Squeezed") for kind, _, _ in block.dims):
        affine = tuple(affine_outputs(block.index_map, len(facts.grid)))
    return GridWindow(
        name=block.name,
        position=position,
        output=output,
        facts=block,
        starts=starts,
        lengths=lengths,
        alias=alias,
        unknown=unknown,
        affine=affine,
    )


def _placed(block: BlockFacts, indices: Sequence[Points], count: int) -> tuple[Points, Points]:
    """First elements and lengths of the blocks of ``count`` programs."""
    starts: list[Points] = []
    lengths: list[Points] = []
    for (kind, size, (low, _)), index in zip(block.dims, block.of_dims(indices), strict=True):
        length: Any = size
        if kind == "BoundedSlice":
            start, length = index.start, index.size
        elif kind == "Element":
            start = np.asarray(index, np.int64) - low
        else:
            start = np.asarray(index, np.int64) * size
        starts.append(np.broadcast_to(np.asarray(start, np.int64), (count,)))
        lengths.append(np.broadcast_to(np.asarray(length, np.int64), (count,)))
    if not starts:
        return np.zeros((0, count), np.int64), np.zeros((0, 1), np.int64)
    return np.stack(starts), np.stack(lengths)


def _platform(facts: GridFacts, platform: str) -> str:
    """What a kernel is written for."""
    return {"Mosaic GPU": "gpu", "Triton": "gpu", "TPUs": "tpu"}.get(facts.written_for, platform)


def _semantics(facts: GridFacts, dims: int, platform: str) -> tuple[str, ...]:
    """What the kernel says of each dim of its grid; vmap's are not in its count."""
    semantics = getattr(facts.params, "dimension_semantics", None) or ()
    words = iter([str(getattr(word, "value", word)).lower() for word in semantics])
    usual = "arbitrary" if platform == "tpu" else "concurrent"
    return tuple("vmapped" if d in facts.vmapped else next(words, usual) for d in range(dims))


def has_blocks(call: KernelCall) -> bool:
    """Whether a kernel is a ``pallas_call`` of which some operand comes in blocks."""
    if call.eqn.primitive.name != "pallas_call":
        return False
    facts = grid_facts(call.eqn)
    return any(block.space not in _WHOLE for block in (*facts.inputs, *facts.outputs))
