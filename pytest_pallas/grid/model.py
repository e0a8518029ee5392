"""A ``pallas_call`` as the analyses see it: its grid, and the blocks of each program.

``read_call`` evaluates the index maps at every grid point, and in a large grid at the first ones.
Index maps that are affine in the grid point are known for any grid. At the end are the questions of
the judge: which program wrote an element, and which memory nothing may have written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pallas_sim.traces import BlockFacts, GridFacts, called_by, is_literal, open_jaxpr, read_inputs
from pytest_pallas.grid.kernel_calls import KernelCall, variables
from pytest_pallas.grid.scalars import Points, access_of, mapped

#: Limit on the programs that are read: the first ones of a larger grid.
MOST_PROGRAMS = 2**16

#: Memory spaces that hold whole arrays, which the body copies from and to by itself.
_WHOLE = frozenset({"any", "hbm", "host", "gmem", "semaphore"})


@dataclass(frozen=True)
class Affine:
    """``constant + sum(c * p)`` over the coordinates ``p`` of a grid point.

    Attributes:
      constant: the value at the origin.
      coefficients: one for each dim of the grid.
    """

    constant: int
    coefficients: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the grid on which it depends."""
        return tuple(i for i, c in enumerate(self.coefficients) if c)

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """Add a multiple of another one."""
        terms = zip(self.coefficients, other.coefficients, strict=True)
        coefficients = tuple(one + factor * two for one, two in terms)
        return Affine(self.constant + factor * other.constant, coefficients)

    def span(self, grid: Sequence[int]) -> tuple[int, int]:
        """Return the least and the greatest value over a grid with at least one point."""
        ends = [c * (n - 1) for c, n in zip(self.coefficients, grid, strict=True)]
        low = self.constant + sum(e for e in ends if e < 0)
        return low, self.constant + sum(e for e in ends if e > 0)


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
        """Write the elements of a program's block, such as ``[0:8, 128:256]``."""
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
      semantics: of each dim of the grid, such as ``"parallel"``.
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
        return tuple(dim for dim, name in enumerate(self.semantics) if name in _CONCURRENT)

    @property
    def programs(self) -> int | None:
        """How many programs run; None if a size of the grid is not known."""
        sizes = [n for n in self.grid if n is not None]
        return math.prod(sizes) if len(sizes) == len(self.grid) else None

    @property
    def body(self) -> Any:
        """The kernel's jaxpr."""
        return self.call.eqn.params["jaxpr"]

    @property
    def synchronizes(self) -> bool:
        """Whether programs may order themselves by atomics, as with a lock or a ticket."""
        return bool(self.call.primitives & {"atomic_rmw", "atomic_cas"})

    def uses(self, window: GridWindow) -> bool:
        """Return whether the body uses the ref of a window at all."""
        return self._ref(window) in {var for eqn in self.body.eqns for var in variables(eqn)}

    def covers(self, window: GridWindow) -> bool:
        """Return whether every program reads or writes the whole block of a window."""
        return self._ref(window) in self._covered

    @cached_property
    def _covered(self) -> set[Any]:
        return set(_covered(self.body, {var: var for var in self.body.invars}))

    def _ref(self, window: GridWindow) -> Any:
        before = len(self.facts.inputs) if window.output else 0
        return self.body.invars[len(self.facts.scalars) + before + window.position]

    def point(self, program: int) -> tuple[int, ...]:
        """Return the grid point of a program."""
        return tuple(int(i) for i in self.points[:, program])


#: Platforms by what a kernel is written for.
_PLATFORMS = {"Mosaic GPU": "gpu", "Triton": "gpu", "TPUs": "tpu"}

_ACCESSES = frozenset({"get", "masked_load", "swap", "masked_swap"})

_CONCURRENT = frozenset({"parallel", "core_parallel", "subcore_parallel", "vmapped", "concurrent"})


def _covered(jaxpr: Any, refs: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the refs of a body that it always accesses as a whole.

    Accesses in branches and loops do not count; those in functions do.

    Args:
      jaxpr: the body, or what it calls.
      refs: from variables of the jaxpr to the refs of the body that they are.
    """
    for eqn in jaxpr.eqns:
        called = called_by(eqn)
        if called is not None:
            pairs = zip(called[0].invars, eqn.invars, strict=True)
            inner = {var: refs[ref] for var, ref in pairs if not is_literal(ref) and ref in refs}
            yield from _covered(called[0], inner)
        elif eqn.primitive.name in _ACCESSES and eqn.invars[0] in refs and _is_whole(eqn):
            yield refs[eqn.invars[0]]


def _is_whole(eqn: Any) -> bool:
    """Return whether an access is to the whole ref, and not masked."""
    access = access_of(eqn)
    return (
        access.window is not None
        and not access.masked
        and all(
            isinstance(getattr(index, "start", None), int)
            and (index.start, index.size, index.stride) == (0, size, 1)
            for index, size in zip(access.window, eqn.invars[0].aval.shape, strict=False)
        )
    )


def region(starts: Iterable[int], lengths: Iterable[int]) -> str:
    """Write elements such as ``[0:8, 128:256]``; a single one along an axis as one number."""
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
    """Read the grid of a ``pallas_call``, and the blocks of its programs.

    Args:
      call: the kernel.
      sizes: the sizes of dynamic dims, in order; None where they are not known.
      scalars: values of the prefetched operands; None where they are not known.
      platform: of kernels that do not show which platform they are written for.
    """
    facts, dynamic = call.facts, iter(sizes)
    assert facts is not None
    grid = tuple(next(dynamic) if n is None else n for n in facts.grid)
    platform = _PLATFORMS.get(facts.written_for, platform)
    least = [1 if n is None else n for n in grid]
    count = math.prod(least)
    points = _first_points(least, min(count, MOST_PROGRAMS))
    partners = dict(facts.aliases), {output: number for number, output in facts.aliases}
    sides = (facts.inputs, facts.outputs)
    windows: list[GridWindow] = []
    for output in (False, True):
        for position, block in enumerate(sides[output]):
            alias, partner = "", partners[output].get(position)
            if partner is not None:  # a prefetched operand may be aliased, too, and is no input
                alias = (partner >= 0 and sides[not output][partner].name) or "a prefetched operand"
            window = _window(facts, block, points, scalars)
            windows.append(replace(window, position=position, output=output, alias=alias))
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
    """Return the first ``count`` points of a grid in the order of execution: last dim fastest."""
    rest, coordinates = np.arange(count), list[Points]()
    for size in reversed(grid):
        coordinates.append(rest % max(size, 1))
        rest = rest // max(size, 1)
    return np.array(coordinates[::-1], np.int32).reshape(len(grid), count)


def _window(
    facts: GridFacts, block: BlockFacts, points: Points, scalars: Sequence[Points | None]
) -> GridWindow:
    """Read the blocks of an operand, as if it were the first input."""
    lengths = np.array([[size] for _, size, _ in block.dims], np.int64).reshape(-1, 1)
    window = GridWindow(block.name, 0, False, block, None, lengths)
    if window.uniform:
        window = replace(window, affine=tuple(affine_outputs(block.index_map, len(facts.grid))))
    if any(kind == "Indirect" for kind, _, _ in block.dims):
        return replace(window, unknown="its blocks are gathered")
    indices = mapped(block.index_map, points, scalars, facts.vmapped)
    if indices is None:
        unknown = "its index map depends on values that are not known here"
        return replace(window, unknown=unknown)
    starts, lengths = _placed(block, indices, points.shape[1])
    return replace(window, starts=starts, lengths=lengths)


def _placed(block: BlockFacts, indices: Sequence[Points], count: int) -> tuple[Points, Points]:
    """Return first elements and lengths of the blocks of ``count`` programs."""
    if not block.dims:
        return np.zeros((0, count), np.int64), np.zeros((0, 1), np.int64)
    indices = [np.asarray(index, np.int64) for index in indices]
    pairs = zip(block.dims, block.of_dims(indices), strict=True)
    lengths = [index.size if kind == "BoundedSlice" else size for (kind, size, _), index in pairs]
    starts, lengths = (
        np.stack([np.broadcast_to(np.asarray(axis, np.int64), (count,)) for axis in axes])
        for axes in (block.starts(indices), lengths)
    )
    return starts, lengths


def _semantics(facts: GridFacts, dims: int, platform: str) -> tuple[str, ...]:
    """Return what the kernel says of each dim of its grid; it does not count vmap's dims."""
    semantics = getattr(facts.params, "dimension_semantics", None) or ()
    names = iter([str(getattr(name, "value", name)).lower() for name in semantics])
    usual = "arbitrary" if platform == "tpu" else "concurrent"
    return tuple("vmapped" if d in facts.vmapped else next(names, usual) for d in range(dims))


def has_blocks(call: KernelCall) -> bool:
    """Return whether a kernel is a ``pallas_call`` of which some operand comes in blocks."""
    blocks = () if call.facts is None else (*call.facts.inputs, *call.facts.outputs)
    return any(block.space not in _WHOLE for block in blocks)


# Index maps that are affine in the grid point.


def affine_outputs(index_map: Any, dims: int) -> list[Affine | None]:
    """Return the outputs of an index map that are affine in the grid point; None for others.

    Args:
      index_map: its jaxpr.
      dims: how many dims the grid has.
    """
    jaxpr, _ = open_jaxpr(index_map)
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
        called = called_by(eqn)
        if called is not None:
            results = _outputs(called[0], operands, dims)
        else:
            results = [_applied(eqn.primitive.name, operands)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _applied(name: str, operands: Sequence[Affine | None]) -> Affine | None:
    known = [operand for operand in operands if operand is not None]
    if not operands or len(known) < len(operands):
        return None
    first, *rest = known
    if name in ("convert_element_type", "multiple_of", "copy", "broadcast_in_dim"):
        return first
    if name == "neg":
        return first.plus(first, -2)
    if name in ("add", "sub"):
        return first.plus(rest[0], 1 if name == "add" else -1)
    if name == "mul" and not first.dims:
        return rest[0].plus(rest[0], first.constant - 1)
    if name == "mul" and not rest[0].dims:
        return first.plus(first, rest[0].constant - 1)
    return None


# Who wrote an element, and memory that nothing may have written.

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
    call: KernelCall,
    output: int,
    index: Sequence[int],
    shape: Sequence[int],
    *,
    written: bool | None = True,
) -> str:
    """Say which block has an element and which grid program wrote it; "" if that is not known.

    Args:
      call: a ``pallas_call``; other kernels write through refs, and nothing is known of them.
      output: the position of the output among the kernel's outputs.
      index: the element, an index into the whole output.
      shape: of the output.
      written: whether a program wrote the element; None if it may be memory as it was.
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
    by = _points(programs)
    if written:
        return f"written by {by} of {kernel}, output block {block} = [{region}]"
    lead = "output block" if written is None else "never written: in output block"
    return f"{lead} {block} = [{region}] of {by} of {kernel}"


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
