"""The body of a kernel, followed once for all grid points, on what is known of each value.

Known is which of its elements lie beyond the edge of an array (``taint``), and, of scalars that
depend on the grid point only, what they are. So branches are entered by those programs that enter
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.compat.source import source_line
from pytest_pallas.analysis.grid.bodies import scalars
from pytest_pallas.analysis.grid.bodies.scalars import Points
from pytest_pallas.analysis.grid.bodies.taint import (
    CLEAN,
    Taint,
    TaintedValue,
    Taints,
    at,
    both,
    moved,
    transferred,
    union,
)
from pytest_pallas.analysis.grid.bodies.windows import masked_window, window_of
from pytest_pallas.analysis.kernel_calls import called_jaxpr


@dataclass(eq=False)
class RefContent:
    """What a ref holds: while the body is followed, from one operation to the next.

    Attributes:
      content: of it.
      known: its values, where they are prefetched and known.
    """

    content: TaintedValue = CLEAN
    known: Points | None = None


@dataclass(eq=False)
class BodyInterpretation:
    """The state of one pass through a body.

    Attributes:
      points: int32[dims, points], the programs that are followed.
      vmapped: dims that the body does not count.
      sizes: of the grid.
      stored: contamination that was stored, with the points at which.
      sure: False inside of branches and loops of which it is not known when they are entered.
    """

    points: Points
    vmapped: Sequence[int]
    sizes: Sequence[int | None]
    stored: list[tuple[Taint, Points]] = field(default_factory=list[tuple[Taint, Points]])
    sure: bool = True


def follow(
    jaxpr: Any, environment: dict[Any, Any], course: BodyInterpretation, active: Points
) -> list[Any]:
    """Follow a jaxpr at the ``active`` points, and return what is known of its outputs."""

    def read(var: Any) -> Any:
        if hasattr(var, "val"):
            scalar = np.ndim(var.val) == 0
            count = course.points.shape[1]
            return TaintedValue(points=np.full(count, var.val, var.aval.dtype)) if scalar else CLEAN
        return environment.get(var, CLEAN)

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        results = _step(eqn, operands, course, active, read)
        for var, result in zip(eqn.outvars, results, strict=True):
            environment[var] = result
    return [read(var) for var in jaxpr.outvars]


def _step(
    eqn: Any, operands: Sequence[Any], course: BodyInterpretation, active: Points, read: Any
) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in ("get", "masked_load", "swap", "masked_swap", "addupdate"):
        return _access(eqn, operands, course, active, read)
    if name == "program_id":
        return [
            TaintedValue(
                points=scalars.coordinate(eqn, course.points, course.vmapped), positional=True
            )
        ]
    if name == "num_programs":
        return [_size(eqn, course)]
    if name == "iota":
        return [TaintedValue(positional=True)]
    called = called_jaxpr(eqn)
    if called is not None:
        environment = dict(zip(called[0].invars, operands, strict=True))
        return follow(called[0], environment, course, active)
    if name == "cond":
        return _branches(eqn, operands, course, active)
    if name in ("scan", "while"):
        return _loop(eqn, operands, course, active)
    if name == "run_scoped":
        return _scoped(eqn, operands, course, active)
    for operand in operands:
        if isinstance(operand, RefContent):  # a copy, or whatever else: what it holds is not known
            operand.content = TaintedValue(positional=True)
    if any(isinstance(operand, RefContent) for operand in operands):
        return [TaintedValue(positional=True)] * len(eqn.outvars)
    results = transferred(eqn, operands, lambda: source_line(eqn) or "")
    if len(results) == 1:
        numbers = scalars.applied(eqn, [value.points for value in operands])
        if numbers is not None:
            return [TaintedValue(results[0].marks, results[0].positional, numbers)]
    return results


def _size(eqn: Any, course: BodyInterpretation) -> TaintedValue:
    counted = [n for dim, n in enumerate(course.sizes) if dim not in course.vmapped]
    size = counted[eqn.params["axis"]]
    points = None if size is None else np.full(course.points.shape[1], size, np.int32)
    return TaintedValue(points=points, positional=size is None)


def _access(
    eqn: Any, operands: Sequence[Any], course: BodyInterpretation, active: Points, read: Any
) -> Sequence[TaintedValue]:
    """A load or store. Of a part of a ref, what was not followed is clean afterwards."""
    cell, name = operands[0], eqn.primitive.name
    shape = eqn.invars[0].aval.shape
    masked, stored = False, None
    if name in ("masked_load", "masked_swap"):
        window, var, masked = masked_window(eqn, eqn.invars)
        stored = None if var is None else read(var)
    elif name == "get":
        window = window_of(eqn, eqn.invars[1:])
    else:
        window, stored = window_of(eqn, eqn.invars[2:]), operands[1]
    if not isinstance(cell, RefContent):
        return [TaintedValue(positional=True)] * len(eqn.outvars)
    if window and len(window) != len(shape):
        window = None  # the ref is not laid out as it is indexed
    axes = None if window is None or masked else _kept(window, shape)
    loaded = _load(cell, window, axes, course, read)
    if stored is not None:
        _note(stored.marks, course, active)
        whole = axes is not None and len(axes) == len(shape) and None not in axes.values()
        new: Taints = stored.marks if whole and course.sure else {}
        before = cell.content.marks if name == "addupdate" and whole else {}
        marks = union([at(cell.content.marks, ~active), at(union([new, before]), active)])
        positional = cell.content.positional or stored.positional or not whole
        cell.content = TaintedValue(marks, positional)
    return [loaded] * len(eqn.outvars)


def _kept(window: Sequence[Any], shape: Sequence[int]) -> dict[int, int | None]:
    """For each axis of a ref that an access leaves there its place in the result.

    None for one of which only a part is accessed.
    """
    axes: dict[int, int | None] = {}
    for axis, size in enumerate(shape):
        index = window[axis] if window else None
        if index is not None and not hasattr(index, "start"):
            continue
        full = index is None or (
            isinstance(index.start, int) and index.start == 0 and index.size == size
        )
        axes[axis] = len(axes) if full else -1
    return {axis: (place if place != -1 else None) for axis, place in axes.items()}


def _load(
    cell: RefContent,
    window: Sequence[Any] | None,
    axes: dict[int, int | None] | None,
    course: BodyInterpretation,
    read: Any,
) -> TaintedValue:
    if axes is None or window is None:
        return TaintedValue(positional=True)
    if cell.known is not None:
        numbers = scalars.indexed(np.asarray(cell.known), window, lambda var: read(var).points)
        if numbers is not None:
            count = course.points.shape[1]
            return TaintedValue(points=np.broadcast_to(numbers, (count,)), positional=True)
    marks = moved(cell.content.marks, axes.get)
    single = not any(hasattr(index, "start") for index in window) and bool(window)
    return TaintedValue(marks, cell.content.positional or single)


def _note(marks: Taints, course: BodyInterpretation, active: Points) -> None:
    """Contamination that is stored is an error."""
    if course.sure:
        course.stored += [
            (mark, points & active) for mark, points in marks.items() if mark.axis is None
        ]


def _branches(
    eqn: Any, operands: Sequence[Any], course: BodyInterpretation, active: Points
) -> Sequence[Any]:
    which, *rest = operands
    branches = eqn.params["branches"]
    results: list[list[Any]] = []
    parts: list[Points] = []
    before = course.sure
    course.sure = before and which.points is not None
    for number, branch in enumerate(branches):
        jaxpr = getattr(branch, "jaxpr", branch)
        here = active
        if which.points is not None:
            here = active & (np.clip(which.points, 0, len(branches) - 1) == number)
        environment = dict(zip(jaxpr.invars, rest, strict=True))
        results.append(follow(jaxpr, environment, course, here))
        parts.append(here)
    course.sure = before
    merged: list[Any] = []
    for values in zip(*results, strict=True):
        positional = any(value.positional for value in values) or which.positional
        if which.points is None:
            marks: Taints = values[0].marks
            for value in values[1:]:
                marks = both(marks, value.marks)
            merged.append(TaintedValue(marks, True))
            continue
        marks = union([at(v.marks, here) for v, here in zip(values, parts, strict=True)])
        numbers = None
        if all(value.points is not None for value in values):
            number = np.clip(which.points, 0, len(values) - 1).astype(int)
            numbers = np.choose(number, [value.points for value in values])
        merged.append(TaintedValue(marks, positional, numbers))
    return merged


def _loop(
    eqn: Any, operands: Sequence[Any], course: BodyInterpretation, active: Points
) -> Sequence[Any]:
    """The first two rounds of a loop; what holds after both is what is known behind it."""
    loop = _scan(eqn, operands) if eqn.primitive.name == "scan" else _while(eqn, operands)
    carry = list(loop.carry)
    after: list[list[Any]] = []
    others = [TaintedValue(positional=True)] * (len(eqn.outvars) - len(carry))
    here, before = active, course.sure
    for turn in range(2):
        if loop.length is not None:
            entered: Points | None = here if turn < loop.length else np.zeros_like(here)
        else:
            (goes_on,) = follow(
                loop.condition,
                dict(zip(loop.condition.invars, [*loop.tested, *carry], strict=True)),
                course,
                here,
            )
            entered = None if goes_on.points is None else here & goes_on.points.astype(bool)
        course.sure = course.sure and entered is not None
        here = here if entered is None else entered
        if not here.any():
            break
        slices = [TaintedValue(positional=True)] * len(loop.slices)
        environment = dict(zip(loop.body.invars, [*loop.consts, *carry, *slices], strict=True))
        carry = follow(loop.body, environment, course, here)[: len(carry)]
        after.append(carry)
    course.sure = before
    if not after:
        return [*loop.carry, *others]
    results: list[Any] = []
    for place, start in enumerate(loop.carry):
        values = [start, *(each[place] for each in after)]
        if any(isinstance(value, RefContent) for value in values):
            results.append(start)
            continue
        # A loop that was certainly entered has left its first value behind.
        ends = values[1:] if loop.length else values
        marks: Taints = ends[0].marks
        for value in ends[1:]:
            marks = both(marks, value.marks)
        results.append(TaintedValue(marks, True))
    return [*results, *others]


@dataclass(frozen=True)
class _Loop:
    """A ``scan`` or ``while``: its body has constants, carry and slices; ``length`` if known."""

    body: Any
    consts: Sequence[Any]
    carry: Sequence[Any]
    slices: Sequence[Any]
    length: int | None
    condition: Any = None
    tested: Sequence[Any] = ()


def _scan(eqn: Any, operands: Sequence[Any]) -> _Loop:
    """What is carried keeps its rank; what is sliced or stacked has one axis more outside."""
    body = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
    carried = sum(
        _rank(outer) == _rank(inner) for outer, inner in zip(eqn.outvars, body.outvars, strict=True)
    )
    sliced = sum(
        _rank(outer) != _rank(inner) for outer, inner in zip(eqn.invars, body.invars, strict=True)
    )
    consts = len(operands) - carried - sliced
    return _Loop(
        body=body,
        consts=operands[:consts],
        carry=operands[consts : consts + carried],
        slices=operands[consts + carried :],
        length=eqn.params["length"],
    )


def _rank(var: Any) -> int:
    return len(getattr(var.aval, "shape", ()))


def _while(eqn: Any, operands: Sequence[Any]) -> _Loop:
    tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    body, condition = eqn.params["body_jaxpr"], eqn.params["cond_jaxpr"]
    return _Loop(
        body=getattr(body, "jaxpr", body),
        consts=operands[tests : tests + consts],
        carry=operands[tests + consts :],
        slices=(),
        length=None,
        condition=getattr(condition, "jaxpr", condition),
        tested=operands[:tests],
    )


def _scoped(
    eqn: Any, operands: Sequence[Any], course: BodyInterpretation, active: Points
) -> Sequence[Any]:
    jaxpr = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
    environment: dict[Any, Any] = dict(zip(jaxpr.constvars, operands, strict=False))
    environment.update({var: RefContent() for var in jaxpr.invars})
    return follow(jaxpr, environment, course, active)
