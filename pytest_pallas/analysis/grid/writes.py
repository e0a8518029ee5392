"""Blocks of an output that programs write at once or come back to, and that others read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas.analysis.grid.bodies.accesses import Accesses
from pytest_pallas.analysis.grid.findings import GridFinding, found
from pytest_pallas.analysis.grid.model import GridCall, GridWindow

#: Pairs of blocks that are compared where their sizes differ.
_MOST_PAIRS = 2**22


def written_twice(call: GridCall, window: GridWindow, accesses: Accesses) -> Iterator[GridFinding]:
    """Blocks of an output that programs write at the same time, or come back to."""
    if window.starts is None or not math.prod(window.shape) or not window.starts.shape[1]:
        return
    if window.whole:
        return  # the body writes where it wants to
    blocks, which = window.distinct
    if call.platform == "gpu" and (call.synchronizes or not accesses.always(window)):
        return  # one after the other, or each program a part of its own
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
        yield found(
            call,
            window,
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


def _revisited(call: GridCall, window: GridWindow, which: Any) -> Iterator[GridFinding]:
    begins = np.flatnonzero(np.concatenate([[True], which[1:] != which[:-1]]))
    visits = which[begins]
    _, first = np.unique(visits, return_index=True)
    again = np.setdiff1d(np.arange(visits.size), first)
    if not again.size:
        return
    late = int(begins[again[0]])
    early = np.flatnonzero(which[:late] == which[late])
    left = int(early[-1]) + 1
    yield found(
        call,
        window,
        "revisited",
        "error",
        (int(early[-1]), left, late),
        f"program {call.point(late)} comes back to the block {window.region(late)}, which "
        f"{call.point(int(early[-1]))} had and {call.point(left)} has left: by then it is in HBM, "
        f"and VMEM holds something else ({again.size} such visits).",
        "Order the grid so that the programs of a block follow each other: the dim that its index "
        "map ignores comes last.",
    )


def read_after_write(
    call: GridCall, window: GridWindow, accesses: Accesses
) -> Iterator[GridFinding]:
    """Blocks of an input that are fetched after an earlier program wrote the memory they share."""
    outputs = {o.position: o for o in call.windows if o.output}
    partner = dict(call.facts.aliases).get(window.position)
    output = None if partner is None else outputs.get(partner)
    if output is None or window.starts is None or output.starts is None:
        return
    if window.whole or output.whole or not window.starts.shape[1]:
        return
    if not accesses.reads(window):
        return
    always = accesses.always(window) and accesses.always(output)
    if call.platform == "gpu" and (call.synchronizes or not always):
        return
    pair = _hazard(call, window, output)
    if pair is None:
        return
    writer, reader = pair
    yield found(
        call,
        window,
        "alias",
        "error",
        pair,
        f"program {call.point(reader)} fetches the block {window.region(reader)}, which shares "
        f"memory with the output {output.name}, after program {call.point(writer)} has written "
        f"{output.region(writer)} there: it may get the old values or the new ones.",
        "Read each block before or while it is written: with the index map of the output. Or do "
        "not alias the two.",
    )


def _hazard(call: GridCall, window: GridWindow, output: GridWindow) -> tuple[int, int] | None:
    """A program that writes and a later one that fetches what it wrote, or None."""
    assert window.starts is not None
    assert output.starts is not None
    starts = window.starts
    fetches = np.concatenate([[True], (starts[:, 1:] != starts[:, :-1]).any(axis=0)])
    if call.platform == "gpu":
        fetches[:] = True
    readers = np.flatnonzero(fetches)
    if window.uniform and output.uniform and window.sizes == output.sizes:
        first = dict[bytes, int]()
        for program in range(output.starts.shape[1]):
            first.setdefault(output.starts[:, program].tobytes(), program)
        for reader in readers:
            writer = first.get(starts[:, reader].tobytes())
            earlier = writer is not None and writer < reader
            if writer is not None and (earlier or (call.platform == "gpu" and writer != reader)):
                return writer, int(reader)
        return None
    count = output.starts.shape[1]
    if readers.size * count > _MOST_PAIRS:
        return None
    ends, out_ends = starts + window.lengths, output.starts + output.lengths
    for reader in readers:
        overlap = (
            (output.starts[:, :reader] < ends[:, reader, None])
            & (out_ends[:, :reader] > starts[:, reader, None])
        ).all(axis=0)
        writers = np.flatnonzero(overlap)
        if writers.size:
            return int(writers[0]), int(reader)
    return None
