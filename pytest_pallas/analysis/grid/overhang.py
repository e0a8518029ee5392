"""Blocks that overhang their array, and are reduced over without a mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_pallas.analysis.grid.course import Cell, Course, follow
from pytest_pallas.analysis.grid.findings import GridFinding
from pytest_pallas.analysis.grid.model import GridCall, Window
from pytest_pallas.analysis.grid.scalars import Points
from pytest_pallas.analysis.grid.taint import Mark, Value
from pytest_pallas.analysis.grid.wording import found, points

#: Programs that are followed; of a larger grid those with overhanging blocks and some others.
_MOST = 4096

_REDUCED = {
    "dot_general": "a matrix product contracts",
    "reduce_sum": "a sum takes in",
    "reduce_max": "a maximum takes in",
    "reduce_min": "a minimum takes in",
    "sort": "a sort takes in",
}


def overhang(call: GridCall) -> Iterator[GridFinding]:
    """Reductions that take in what lies beyond the edge of an array, and are stored."""
    hanging = {
        (position, axis): over
        for position, window in enumerate(call.windows)
        if not window.output and not window.whole
        for axis, over in _overhanging(window)
    }
    if not hanging or not call.points.shape[1]:
        return
    chosen = _chosen(call, list(hanging.values()))
    hanging = {source: over[chosen] for source, over in hanging.items()}
    course = Course(call.points[:, chosen], call.facts.vmapped, call.grid)
    body, environment = call.body, dict[Any, Any]()
    offset = len(call.scalars)
    for position, var in enumerate(body.invars):
        cell = Cell()
        if position < offset:
            cell.known = call.scalars[position]
        elif position - offset < len(call.windows):
            cell.content = _loaded(call.windows[position - offset], position - offset, hanging)
        environment[var] = cell
    follow(body, environment, course, np.ones(len(chosen), bool))
    by_source: dict[tuple[int, int], dict[tuple[str, str], Points]] = {}
    for mark, where in course.stored:
        places = where & hanging[mark.source]
        if mark.by is not None and places.any():
            operations = by_source.setdefault(mark.source, {})
            operations[mark.by] = operations.get(mark.by, places) | places
    for source, operations in sorted(by_source.items()):
        yield _finding(call, source, operations, chosen)


def _finding(
    call: GridCall,
    source: tuple[int, int],
    operations: Mapping[tuple[str, str], Points],
    chosen: Points,
) -> GridFinding:
    position, axis = source
    window = call.windows[position]
    (name, line), places = next(iter(operations.items()))
    programs = [int(i) for i in chosen[np.flatnonzero(places)]]
    others = "".join(f", and {n}{_at(where)}" for n, where in list(operations)[1:3])
    return found(
        call,
        window,
        "overhang",
        "error",
        programs[:3],
        f"{_REDUCED.get(name, f'{name} takes in')}{_at(line)} all of the block "
        f"{window.region(programs[0])} of {points(call, programs)}{others}; but axis {axis} of the "
        f"array has {window.shape[axis]} elements, and what lies beyond is unspecified.",
        "Mask it before: jnp.where(first + jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < "
        "size, x, 0). Multiplying by 0 does not do, because 0 * NaN is NaN.",
    )


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _overhanging(window: Window) -> Iterator[tuple[int, Points]]:
    """The axes along which some blocks overhang, with bool[programs]."""
    if window.starts is None:
        return
    ends = window.starts + window.lengths
    for axis, (kind, _, _) in enumerate(window.facts.dims):
        size = window.shape[axis]
        over = (ends[axis] > size) & (window.starts[axis] < size)
        if kind == "Element":
            over |= (window.starts[axis] < 0) & (ends[axis] > 0)
        if kind in ("Blocked", "Element") and over.any():
            yield axis, over


def _chosen(call: GridCall, masks: Sequence[Points]) -> Points:
    """Which programs to follow."""
    count = call.points.shape[1]
    if count <= _MOST:
        return np.arange(count)
    share = _MOST // (len(masks) + 1)
    some = [np.flatnonzero(mask) for mask in masks]
    parts = [each[:: max(1, len(each) // share)][:share] for each in some]
    return np.unique(np.concatenate([np.arange(0, count, max(1, count // share)), *parts]))


def _loaded(window: Window, position: int, hanging: Mapping[tuple[int, int], Points]) -> Value:
    """What the ref of a window holds when the body begins; it has no squeezed axes."""
    axes = [a for a, (kind, _, _) in enumerate(window.facts.dims) if kind != "Squeezed"]
    marks = {
        Mark((position, axis), axes.index(axis)): over
        for (owner, axis), over in hanging.items()
        if owner == position
    }
    return Value(marks)
