"""Blocks that lie outside of their array, and parts of an output that no program writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_pallas.analysis.grid.bodies.accesses import Accesses
from pytest_pallas.analysis.grid.bodies.scalars import Points
from pytest_pallas.analysis.grid.findings import GridFinding, found, points
from pytest_pallas.analysis.grid.model import GridCall, GridWindow, region
from pytest_pallas.analysis.grid.scopes import OutputUse

#: Regions into which an array is cut at the edges of blocks that overlap.
_MOST_CELLS = 2**22

#: A region of an output that no program writes, and how many there are.
type _Missing = tuple[tuple[tuple[int, int], ...], int] | None


def out_of_range(call: GridCall, window: GridWindow, accesses: Accesses) -> Iterator[GridFinding]:
    """Blocks that lie entirely outside of their array."""
    if window.starts is None or not math.prod(window.shape):
        return
    ends = window.starts + window.lengths
    low = np.array([p for _, _, (p, _) in window.facts.dims]).reshape(-1, 1)
    high = np.array([p for _, _, (_, p) in window.facts.dims]).reshape(-1, 1)
    sizes = np.array(window.shape).reshape(-1, 1)
    outside = (window.starts >= sizes + high) | (ends <= -low)
    outside = outside.any(axis=0) & (np.broadcast_to(window.lengths, ends.shape) > 0).all(axis=0)
    at = np.flatnonzero(outside)
    if not at.size:
        return
    # On GPUs a block is an address; what lies there is wrong only if it is touched.
    sure = call.platform == "tpu" or accesses.always(window)
    yield found(
        call,
        window,
        "out-of-range",
        "error" if sure else "warning",
        at[:3],
        f"{points(call, at)} {_does(window, at)} the block {window.region(int(at[0]))} of an array "
        f"{list(window.shape)}: it lies outside.",
        "Clamp what the index map returns, such as jnp.minimum(i, last), or correct the grid. The "
        "portable interpreter clamps it silently; the hardware does not.",
    )


def _does(window: GridWindow, at: Points) -> str:
    verb = "write" if window.output else "read"
    return verb if len(at) > 1 else f"{verb}s"


def never_written(call: GridCall, window: GridWindow, use: OutputUse) -> Iterator[GridFinding]:
    """Parts of an output that no program writes."""
    if window.alias or not math.prod(window.shape) or None in call.grid:
        return
    if call.complete and window.starts is not None:
        missing = _missing_blocks(window) if window.uniform else _missing_cells(window)
    elif window.uniform:
        missing = _missing_by_reasoning(call, window)
    else:
        return
    if not missing:
        return
    block, count = missing
    seen = any(
        all(a < high and low < b for (a, b), (low, high) in zip(block, part, strict=True))
        for part in use.returned
    )
    if not seen and not use.doubtful:
        return  # nothing uses it
    words = region([a for a, _ in block], [b - a for a, b in block])
    what = f"no program writes {words}" + (f" and {count - 1} more blocks" if count > 1 else "")
    doubt = "" if seen else " What follows the kernel may not use it."
    yield found(
        call,
        window,
        "never-written",
        "error" if seen else "warning",
        (),
        f"{what} of the output {list(window.shape)}: grid {tuple(call.grid)}, blocks "
        f"{window.sizes}.{doubt}",
        "Let the grid have pl.cdiv(size, block) programs along each axis, and the index map reach "
        "every block; or alias the output to an input that holds the rest.",
    )


def _missing_blocks(window: GridWindow) -> _Missing:
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
    # The first number that is not among the sorted ones.
    gaps = np.flatnonzero(written != np.arange(written.size))
    first = int(gaps[0]) if gaps.size else written.size
    return _edges(window, [int(i) for i in np.unravel_index(first, counts)]), missing


def _missing_cells(window: GridWindow) -> _Missing:
    """As ``_missing_blocks``, of blocks that may begin anywhere and overlap."""
    assert window.starts is not None
    ends = window.starts + window.lengths
    cuts = [
        np.unique(np.clip(np.concatenate([s, e, [0, n]]), 0, n))
        for s, e, n in zip(window.starts, ends, window.shape, strict=True)
    ]
    if math.prod(len(c) for c in cuts) > _MOST_CELLS:
        return None
    written = np.zeros([len(c) - 1 for c in cuts], bool)
    lows = [
        np.searchsorted(c, np.clip(s, 0, n)) for c, s, n in _by_axis(cuts, window.starts, window)
    ]
    highs = [np.searchsorted(c, np.clip(e, 0, n)) for c, e, n in _by_axis(cuts, ends, window)]
    boxes = {tuple(map(tuple, box)) for box in np.stack([lows, highs], -1).transpose(1, 0, 2)}
    for box in boxes:
        written[tuple(slice(a, b) for a, b in box)] = True
    missing = np.argwhere(~written)
    if not len(missing):
        return None
    first = [(int(c[i]), int(c[i + 1])) for c, i in zip(cuts, missing[0], strict=True)]
    return tuple(first), len(missing)


def _by_axis(cuts: Any, places: Any, window: GridWindow) -> Iterator[tuple[Any, Any, int]]:
    yield from zip(cuts, places, window.shape, strict=True)


def _missing_by_reasoning(call: GridCall, window: GridWindow) -> _Missing:
    """As ``_missing_blocks``, by what affine index maps of a large grid cannot reach."""
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
            short = low + max(count - 1 - high, 0)
            return _edges(window, index), short * math.prod(counts) // count
    return None


def _edges(window: GridWindow, index: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (i * b, min((i + 1) * b, n))
        for i, b, n in zip(index, window.sizes, window.shape, strict=True)
    )
