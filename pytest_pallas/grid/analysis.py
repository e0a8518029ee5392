"""Analyze the grids of a traced function, without running it (``analyze_jaxpr``).

Each function that yields ``Problem`` checks the blocks of one operand of one call. A small grid is
complete: the blocks of all programs are known. Of a large grid only some programs are read; for the
others the checks reason about the ranges of index maps that are affine in the grid point.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.errors import Inline
from pallas_sim.traces import source_line, without_dead_code
from pytest_pallas.grid import findings as picture
from pytest_pallas.grid.findings import GridFinding, Kind, Severity, finding_of, points
from pytest_pallas.grid.kernel_calls import KernelCall, only_copies, work_outside
from pytest_pallas.grid.model import GridCall, GridWindow, read_call, region
from pytest_pallas.grid.overhang import illegal_tiles, overhang, too_much_memory
from pytest_pallas.grid.ranges import overflows
from pytest_pallas.grid.scalars import (
    JaxprScope,
    OutputUse,
    Points,
    UnknownValueError,
    located,
    scopes_of,
    use_of,
)

#: Most cells into which the edges of overlapping blocks may cut an array; beyond, no search.
_MOST_CELLS = 2**22

#: The first region of an output that no program writes, as (start, stop) for each axis, and the
#: number of such regions; None if there is none.
type _Missing = tuple[tuple[tuple[int, int], ...], int] | None


#: Arguments of ``finding_of``: kind, severity, programs that show the problem (numbers or grid
#: points), what is wrong, and what to do.
type Problem = tuple[Kind, Severity, Iterable[int | tuple[int, ...]], str, str]


def out_of_range(call: GridCall, window: GridWindow) -> Iterator[Problem]:
    """Find blocks that lie entirely outside of their array and its padding."""
    if window.starts is None or not math.prod(window.shape):
        return
    ends = window.starts + window.lengths
    low = np.array([p for _, _, (p, _) in window.facts.dims]).reshape(-1, 1)
    high = np.array([p for _, _, (_, p) in window.facts.dims]).reshape(-1, 1)
    sizes = np.array(window.shape).reshape(-1, 1)
    outside = (window.starts >= sizes + high) | (ends <= -low)
    outside = outside.any(axis=0) & (np.broadcast_to(window.lengths, ends.shape) > 0).all(axis=0)
    programs = np.flatnonzero(outside)
    if not programs.size:
        return
    # On a GPU a block is only an address: it is an error only if the body accesses it.
    accessed = call.platform == "tpu" or call.covers(window)
    yield (
        "out-of-range",
        "error" if accessed else "warning",
        programs[:3],
        f"{points(call, programs)} {_verb(window, programs)} the block "
        f"{window.region(int(programs[0]))} of an array {list(window.shape)}: it lies outside.",
        "Clamp what the index map returns, such as jnp.minimum(i, last), or correct the grid. The "
        "portable interpreter clamps it silently; the hardware does not.",
    )


def _verb(window: GridWindow, programs: Points) -> str:
    """Return what these programs do with a window: "read", "write", or "reads", "writes" of one."""
    verb = "write" if window.output else "read"
    return verb if len(programs) > 1 else f"{verb}s"


def never_written(call: GridCall, window: GridWindow, use: OutputUse) -> Iterator[Problem]:
    """Find regions of an output that no program writes, and that the function may use."""
    if window.alias or not math.prod(window.shape) or None in call.grid:
        return
    if call.complete and window.starts is not None:
        missing = _missing_blocks(window) if window.uniform else _missing_cells(window)
    elif window.uniform:
        missing = _missing_affine(call, window)
    else:
        return
    if not missing:
        return
    block, count = missing
    returned = any(
        all(a < high and low < b for (a, b), (low, high) in zip(block, part, strict=True))
        for part in use.returned
    )
    if not returned and not use.doubtful:
        return  # the function does not use this region
    unwritten = region([a for a, _ in block], [b - a for a, b in block])
    more = f" and {count - 1} more block{'s' * (count > 2)}" if count > 1 else ""
    doubt = "" if returned else " What follows the kernel may not use it."
    yield (
        "never-written",
        "error" if returned else "warning",
        (),
        f"no program writes {unwritten}{more} of the output {list(window.shape)}: grid "
        f"{tuple(call.grid)}{', which has no programs' if 0 in call.grid else ''}, blocks "
        f"{window.sizes}.{doubt}",
        "Let the grid have pl.cdiv(size, block) programs along each axis, and the index map reach "
        "every block; or alias the output to an input that holds the rest.",
    )


def _missing_blocks(window: GridWindow) -> _Missing:
    """Return the first block that no program has, and the number of such blocks."""
    counts = window.counts
    blocks, _ = window.distinct
    if not window.shape:
        return None if blocks.shape[1] else ((), 1)
    index = blocks // np.array(window.sizes).reshape(-1, 1)
    inside = ((index >= 0) & (index < np.array(counts).reshape(-1, 1))).all(axis=0)
    written = np.unique(np.ravel_multi_index(tuple(index[:, inside]), counts))
    missing = math.prod(counts) - written.size
    if not missing:
        return None
    # ``written`` is sorted: the first gap is where a number is not its own index.
    gaps = np.flatnonzero(written != np.arange(written.size))
    first = int(gaps[0]) if gaps.size else written.size
    return _edges(window, [int(i) for i in np.unravel_index(first, counts)]), missing


def _missing_cells(window: GridWindow) -> _Missing:
    """Return the first missing cell and the number of these, for blocks that may overlap.

    Such blocks have no common edges. So the edges of all of them cut the array into cells; each
    block covers whole cells.
    """
    assert window.starts is not None
    ends = window.starts + window.lengths
    cuts = [
        np.unique(np.clip(np.concatenate([s, e, [0, n]]), 0, n))
        for s, e, n in zip(window.starts, ends, window.shape, strict=True)
    ]
    if math.prod(len(c) for c in cuts) > _MOST_CELLS:
        return None
    written = np.zeros([len(c) - 1 for c in cuts], bool)
    edges = [
        np.searchsorted(c, np.clip([s, e], 0, n))
        for c, s, e, n in zip(cuts, window.starts, ends, window.shape, strict=True)
    ]
    for box in {tuple(map(tuple, box)) for box in np.array(edges).transpose(2, 0, 1)}:
        written[tuple(slice(a, b) for a, b in box)] = True
    missing = np.argwhere(~written)
    if not len(missing):
        return None
    first = [(int(c[i]), int(c[i + 1])) for c, i in zip(cuts, missing[0], strict=True)]
    return tuple(first), len(missing)


def _missing_affine(call: GridCall, window: GridWindow) -> _Missing:
    """Return the first missing block and the number of these, for a grid that is not complete.

    If an axis has an affine index, its range shows which blocks along the axis no program reaches.
    """
    grid = [n for n in call.grid if n is not None]
    if not call.programs or len(window.affine) != len(window.shape):
        return None
    counts = window.counts
    for axis, (affine, count) in enumerate(zip(window.affine, counts, strict=True)):
        if affine is None:
            continue
        low, high = affine.span(grid)
        if low > 0 or high < count - 1:
            index = [0] * len(counts)
            index[axis] = 0 if low > 0 else high + 1
            missing = max(low, 0) + max(count - 1 - high, 0)
            return _edges(window, index), missing * math.prod(counts) // count
    return None


def _edges(window: GridWindow, index: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return start and stop of a block along each axis, cut off at the end of the array."""
    return tuple(
        (i * b, min((i + 1) * b, n))
        for i, b, n in zip(index, window.sizes, window.shape, strict=True)
    )


# Blocks of an output that several programs write, and blocks of an input that are read after that.


#: Most pairs of blocks that are compared if blocks may overlap; beyond, no search.
_MOST_PAIRS = 2**22


def written_twice(call: GridCall, window: GridWindow) -> Iterator[Problem]:
    """Find blocks of an output that programs write at the same time, or return to after others."""
    if window.starts is None or not math.prod(window.shape) or not window.starts.shape[1]:
        return
    if window.whole:
        return  # the body chooses what it writes
    blocks, which = window.distinct
    if call.platform == "gpu" and (call.synchronizes or not call.covers(window)):
        return  # by turns, or each program may write a part of its own
    for dim in call.concurrent:
        along = call.points[dim]
        low = np.full(blocks.shape[1], np.iinfo(np.int64).max)
        high = np.full(blocks.shape[1], -1)
        np.minimum.at(low, which, along)
        np.maximum.at(high, which, along)
        shared = np.flatnonzero(low < high)
        if not shared.size:
            continue
        of_first = np.flatnonzero(which == shared[0])
        first = int(of_first[0])
        other = int(of_first[np.flatnonzero(along[of_first] != along[first])[0]])
        how = (
            f"which differ along dim {dim}, and that is {call.semantics[dim]!r}"
            if call.platform == "tpu"
            else "and the programs of a grid run at the same time on a GPU"
        )
        yield (
            "parallel-write",
            "error",
            (first, other),
            f"programs {call.point(first)} and {call.point(other)} both write the block "
            f"{window.region(first)}, {how} ({shared.size} such blocks).",
            f"Let dim {dim} be 'arbitrary' in dimension_semantics, or give each program a block "
            "of its own."
            if call.platform == "tpu"
            else "Give each program a block of its own and add up afterwards, or loop in one "
            "program, or use atomic operations.",
        )
        return
    if call.platform == "tpu" and not window.alias and not window.facts.any_revisit:
        yield from _revisited(call, window, which)


def _revisited(call: GridCall, window: GridWindow, which: Any) -> Iterator[Problem]:
    """Find blocks that a program returns to after other blocks; ``which`` is each program's block.

    A TPU writes a block back to HBM when the grid moves on, and does not fetch it again.
    """
    begins = np.flatnonzero(np.concatenate([[True], which[1:] != which[:-1]]))
    visits = which[begins]
    _, first = np.unique(visits, return_index=True)
    again = np.setdiff1d(np.arange(visits.size), first)
    if not again.size:
        return
    late = int(begins[again[0]])
    early = np.flatnonzero(which[:late] == which[late])
    left = int(early[-1]) + 1
    yield (
        "revisited",
        "error",
        (int(early[-1]), left, late),
        f"program {call.point(late)} comes back to the block {window.region(late)}, which "
        f"{call.point(int(early[-1]))} had and {call.point(left)} has left: by then it is in HBM, "
        f"and VMEM holds something else ({again.size} such visits).",
        "Order the grid so that the programs of a block follow each other: the dim that its index "
        "map ignores comes last.",
    )


def read_after_write(call: GridCall, window: GridWindow) -> Iterator[Problem]:
    """Find blocks of an input that are fetched after a program wrote to an aliased output there."""
    outputs = {o.position: o for o in call.windows if o.output}
    partner = dict(call.facts.aliases).get(window.position)
    output = None if partner is None else outputs.get(partner)
    if output is None or window.starts is None or output.starts is None:
        return
    if window.whole or output.whole or not window.starts.shape[1]:
        return
    if not call.uses(window):
        return
    always = call.covers(window) and call.covers(output)
    if call.platform == "gpu" and (call.synchronizes or not always):
        return
    pair = _hazard(call, window, output)
    if pair is None:
        return
    writer, reader = pair
    when = (
        f"and program {call.point(writer)}, which may run at the same time, writes"
        if call.platform == "gpu"
        else f"after program {call.point(writer)} has written"
    )
    yield (
        "alias",
        "error",
        pair,
        f"program {call.point(reader)} fetches the block {window.region(reader)}, which shares "
        f"memory with the output {output.name}, {when} "
        f"{output.region(writer)} there: it may get the old values or the new ones.",
        "Read each block before or while it is written: with the index map of the output. Or do "
        "not alias the two.",
    )


def _hazard(call: GridCall, window: GridWindow, output: GridWindow) -> tuple[int, int] | None:
    """Return a program that writes and another one that fetches what it wrote, or None.

    On a TPU the reader runs later, but so few steps that its block may be fetched before the other
    one is back, or on another core. On a GPU they may run at the same time, so the writer may be
    any other program.
    """
    assert window.starts is not None
    assert output.starts is not None
    starts, together = window.starts, call.platform == "gpu"
    fetches = np.concatenate([[True], (starts[:, 1:] != starts[:, :-1]).any(axis=0)])
    readers = np.arange(fetches.size) if together else np.flatnonzero(fetches)
    leaves = np.concatenate([(output.starts[:, 1:] != output.starts[:, :-1]).any(axis=0), [True]])
    #: The last program that has the same block of the output as this one, before it is left.
    lasts = np.flatnonzero(leaves)[np.cumsum(leaves) - leaves]
    along = call.points[list(call.concurrent)]

    def meets(writers: Points, reader: int) -> int | None:
        """Return a writer that may overtake the fetch, or be overtaken by it."""
        if together:
            early = writers != reader
        else:
            near = lasts[writers] >= reader - window.facts.lag - output.facts.lag
            apart = (along[:, writers] != along[:, [reader]]).any(axis=0)
            early = (writers < reader) & (near | apart)
        chosen = np.flatnonzero(early)
        return int(writers[chosen[0]]) if chosen.size else None

    if window.uniform and output.uniform and window.sizes == output.sizes:
        writers_of: dict[bytes, list[int]] = {}
        for program in range(output.starts.shape[1]):
            writers_of.setdefault(output.starts[:, program].tobytes(), []).append(program)
        for reader in readers:
            writers = writers_of.get(starts[:, reader].tobytes(), [])
            # The first one, the last one, and the last one before: others are not nearer.
            before = bisect.bisect_left(writers, reader) - 1
            some = sorted({*writers[:1], *writers[-1:], *writers[max(before, 0) : before + 1]})
            writer = meets(np.array(some, np.int64), int(reader))
            if writer is not None:
                return writer, int(reader)
        return None
    count = output.starts.shape[1]
    if readers.size * count > _MOST_PAIRS:
        return None
    ends, out_ends = starts + window.lengths, output.starts + output.lengths
    for reader in readers:
        overlap = (
            (output.starts < ends[:, reader, None]) & (out_ends > starts[:, reader, None])
        ).all(axis=0)
        writer = meets(np.flatnonzero(overlap), int(reader))
        if writer is not None:
            return writer, int(reader)
    return None


# Findings from affine index maps, for a grid that is too large to be read as a whole.


def affine_out_of_range(call: GridCall, window: GridWindow) -> Iterator[Problem]:
    """Find blocks outside of their array, from the range of an affine index map."""
    grid = _grid(call, window)
    if grid is None:
        return
    counts = window.counts
    for axis, (affine, count) in enumerate(zip(window.affine, counts, strict=True)):
        if affine is None or not count:
            continue
        low, high = affine.span(grid)
        if low < 0 or high >= count:
            corner = tuple(
                n - 1 if (c > 0) == (high >= count) else 0
                for c, n in zip(affine.coefficients, grid, strict=True)
            )
            yield (
                "out-of-range",
                "error" if call.platform == "tpu" else "warning",
                [corner],
                f"program {corner} has the block {high if high >= count else low} "
                f"along axis {axis}, where the array {list(window.shape)} has {count}.",
                "Clamp what the index map returns, or correct the grid.",
            )
            return


def _grid(call: GridCall, window: GridWindow) -> Sequence[int] | None:
    """Return the grid of a call that is not complete, if the index of the window is affine."""
    if call.complete or not call.programs or window.whole or None in window.affine:
        return None
    return [n for n in call.grid if n is not None] if window.uniform else None


def affine_written_twice(call: GridCall, window: GridWindow) -> Iterator[Problem]:
    """Find blocks of an output that are written twice, because their index ignores a grid dim."""
    grid = _grid(call, window)
    if grid is None:
        return
    used = {dim for affine in window.affine if affine is not None for dim in affine.dims}
    ignored = [dim for dim, n in enumerate(grid) if n > 1 and dim not in used]
    if not ignored or call.platform != "tpu":
        return
    at_once = [dim for dim in ignored if dim in call.concurrent]
    inner = [dim for dim, n in enumerate(grid) if n > 1 and dim > ignored[0] and dim in used]
    origin = tuple([0] * len(grid))
    if at_once:
        kind, dim = "parallel-write", at_once[0]
        text = f"dim {dim} of the grid is {call.semantics[dim]!r}"
    elif inner and not window.alias and not window.facts.any_revisit:
        kind, dim = "revisited", ignored[0]
        text = f"dim {inner[0]} of the grid, which moves on to other blocks, is inside of dim {dim}"
    else:
        return
    other = tuple(int(i == dim) for i in range(len(grid)))
    yield (
        kind,
        "error",
        (origin, other),
        f"programs {origin} and {other} write the same block, and {text}.",
        "Let the dim that the index map ignores be 'arbitrary' and come last.",
    )


#: Most elements of a prefetched operand whose values are computed; a larger one is not known.
_MOST_SCALARS = 2**20


@dataclass(frozen=True)
class Analysis(Inline):
    """Holds the grids of a function and their findings; the function did not run.

    Attributes:
      findings: what is wrong, in the order of the kernels.
      calls: every ``pallas_call`` of the function.
      others: kernels that have no blocks, such as those of ``pl.kernel``.
      chip: name of the chip whose VMEM and tiles were checked, such as ``"v6e"``.
    """

    findings: tuple[GridFinding, ...]
    calls: tuple[GridCall, ...] = field(repr=False)
    others: tuple[KernelCall, ...] = field(repr=False)
    chip: str = "v6e"

    @property
    def errors(self) -> tuple[GridFinding, ...]:
        """The findings that are errors on every chip of the kernel's platform."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def report(self) -> str:
        """Write every kernel with its grid, blocks and findings, in 100 columns of plain text."""
        return picture.report(self.calls, self.others, self.findings)


def analyze_jaxpr(
    closed: Any, arrays: Sequence[Any], *, platform: str = "tpu", chip: str = "v6e"
) -> Analysis:
    """Analyze the grids of a traced function, and return their findings.

    Args:
      closed: its closed jaxpr.
      arrays: its inputs, in order. A ``jax.ShapeDtypeStruct`` may stand for an array; then the
        blocks of index maps that read the array are not known.
      platform: ``"tpu"`` or ``"gpu"``, for kernels whose jaxpr does not show their platform.
      chip: the chip whose VMEM and tiles are checked, such as ``"v6e"``.
    """
    calls: list[GridCall] = []
    others: list[KernelCall] = []
    findings: list[GridFinding] = []
    for call, scope in located(scopes_of(closed, arrays)):
        if call.facts is None:
            others.append(call)
            continue
        grid_call = _read(call, scope, platform)
        calls.append(grid_call)
        findings += _without_repeats(grid_call, list(_findings(grid_call, scope, chip)))
    findings += _without_work(closed, [*(call.call for call in calls), *others])
    return Analysis(tuple(dict.fromkeys(findings)), tuple(calls), tuple(others), chip)


def _without_work(closed: Any, kernels: Sequence[KernelCall]) -> Iterator[GridFinding]:
    """Yield a finding if all kernels of a function only copy, and the function computes."""
    if not kernels or not all(map(only_copies, kernels)):
        return
    work = work_outside(without_dead_code(closed))
    if not work:
        return
    names = list(dict.fromkeys(eqn.primitive.name for eqn in work))
    more = f" and {len(names) - 3} more operations" if len(names) > 3 else ""
    line = source_line(work[0])
    yield GridFinding(
        kind="copies",
        severity="warning",
        kernel=kernels[0].name,
        source=kernels[0].source,
        operand="the body",
        programs=(),
        message="the kernel only copies: it computes none of the numbers that it stores. Outside "
        f"of kernels the function computes {', '.join(names[:3])}{more}"
        f"{f' ({line})' if line else ''}.",
        remedy="If the kernel is to do this work, move it into the body.",
    )


def _read(call: KernelCall, scope: JaxprScope, platform: str) -> GridCall:
    """Return the grid of a call, with the values of its dynamic sizes and prefetched operands."""
    facts, operands = call.facts, call.eqn.invars
    assert facts is not None
    sizes = [_value(scope, operands[position]) for position in facts.sizes]
    scalars = [_value(scope, operands[position]) for position in facts.scalars]
    counts = [None if size is None else max(0, int(size)) for size in sizes]
    return read_call(call, counts, scalars, platform)


def _value(scope: JaxprScope, var: Any) -> Any:
    """Return the value of an operand, or None if it is too large or not known."""
    if np.prod(getattr(var.aval, "shape", ()), dtype=np.int64) > _MOST_SCALARS:
        return None
    try:
        return np.asarray(scope.value(var))
    except UnknownValueError:
        return None


def _without_repeats(call: GridCall, findings: Sequence[GridFinding]) -> Sequence[GridFinding]:
    """Keep the first finding of each kind and operand, if the grid is not complete.

    There the same mistake may be found twice: in the programs that were read, and by reasoning.
    """
    if call.complete:
        return findings
    first: dict[tuple[str, str], GridFinding] = {}
    for finding in findings:
        first.setdefault((finding.kind, finding.operand), finding)
    return list(first.values())


def _problems(call: GridCall, window: GridWindow, scope: JaxprScope) -> Iterator[Problem]:
    """Yield the problems of one operand."""
    yield from out_of_range(call, window)
    if window.output:
        use = use_of(scope, call.call.eqn.outvars[window.position])
        if use.returned or use.doubtful:
            yield from never_written(call, window, use)
            yield from written_twice(call, window)
            yield from affine_written_twice(call, window)
    else:
        yield from read_after_write(call, window)
    yield from affine_out_of_range(call, window)


def _findings(call: GridCall, scope: JaxprScope, chip: str) -> Iterator[GridFinding]:
    for window in call.windows:
        for problem in _problems(call, window, scope):
            yield finding_of(call, window, *problem)
    yield from overhang(call)
    yield from overflows(call.call, call.grid)
    yield from illegal_tiles(call)
    yield from too_much_memory(call, chip)


def merged(analyses: Sequence[Analysis]) -> Analysis:
    """Merge analyses into one with the chip of the first; it has each finding once."""
    return dataclasses.replace(
        analyses[0],
        findings=tuple(dict.fromkeys(f for analysis in analyses for f in analysis.findings)),
        calls=tuple(call for analysis in analyses for call in analysis.calls),
        others=tuple(call for analysis in analyses for call in analysis.others),
    )
