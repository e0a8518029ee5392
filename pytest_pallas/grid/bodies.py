"""What is computed of elements beyond the edge of an array, operation by operation.

A value is tainted along an axis where its last elements come from beyond the edge of a block's
array, and contaminated once they were reduced into the others. Where that cannot be followed, the
value is taken to be clean: only what is certain is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.traces import source_line
from pytest_pallas.grid import scalars
from pytest_pallas.grid.kernel_calls import called_jaxpr
from pytest_pallas.grid.model import GridCall, GridWindow
from pytest_pallas.grid.scalars import Points, masked_window, window_of


@dataclass(frozen=True)
class Taint:
    """Why a value is tainted.

    Attributes:
      source: which block, as (window, axis of its array).
      axis: of the value; None if it is contaminated.
      by: the operation that contaminated it, as (name, ``file:line``).
    """

    source: tuple[int, int]
    axis: int | None
    by: tuple[str, str] | None = None


#: For each reason the grid points at which it holds, bool[points].
Taints = Mapping[Taint, Points]


@dataclass(frozen=True)
class TaintedValue:
    """What is known of a variable of a kernel's body.

    Attributes:
      marks: how it is tainted.
      positional: whether it depends on where in the grid or the block it is.
      points: of a scalar, its value at each grid point; None if that is not known.
    """

    marks: Taints = field(default_factory=dict[Taint, Points])
    positional: bool = False
    points: Points | None = None


CLEAN = TaintedValue()

_ELEMENTWISE = frozenset(
    {
        *("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt"),
        *("ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh", "div", "eq"),
        *("erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow"),
        *("is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg"),
        *("nextafter", "not", "optimization_barrier", "or", "pow", "reciprocal"),
        *("reduce_precision", "rem", "round", "rsqrt", "shift_left", "shift_right_arithmetic"),
        *("shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub"),
        *("tan", "tanh", "xor", "multiple_of", "roll", "rev", "stochastic_round", "add_any"),
    }
)

_REDUCTIONS = frozenset(
    {
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
        *("argmax", "argmin"),
    }
)

_CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})


def union(parts: Sequence[Taints]) -> dict[Taint, Points]:
    """Tainted by any of them."""
    found: dict[Taint, Points] = {}
    for marks in parts:
        for mark, points in marks.items():
            before = found.get(mark)
            found[mark] = points if before is None or before is points else before | points
    return found


def at(marks: Taints, points: Points) -> dict[Taint, Points]:
    """The marks at some grid points only."""
    limited = {mark: here & points for mark, here in marks.items()}
    return {mark: here for mark, here in limited.items() if here.any()}


def both(a: Taints, b: Taints) -> dict[Taint, Points]:
    """The marks that hold in either case."""
    shared = {mark: points & b[mark] for mark, points in a.items() if mark in b}
    return {mark: points for mark, points in shared.items() if points.any()}


def moved(marks: Taints, axis_of: Callable[[int], int | None]) -> dict[Taint, Points]:
    """The marks with other axes; those for which ``axis_of`` gives None are lost."""
    found: dict[Taint, Points] = {}
    for mark, points in marks.items():
        axis = None if mark.axis is None else axis_of(mark.axis)
        if mark.axis is None or axis is not None:
            new = Taint(mark.source, axis, mark.by)
            found[new] = found[new] | points if new in found else points
    return found


def contaminated(
    marks: Taints, axes: Sequence[int], by: tuple[str, str], axis_of: Callable[[int], int | None]
) -> dict[Taint, Points]:
    """The marks after a reduction over ``axes``: those along them become contamination."""
    rest = {mark: points for mark, points in marks.items() if mark.axis not in axes}
    hit = [
        {Taint(mark.source, None, by): points}
        for mark, points in marks.items()
        if mark.axis is not None and mark.axis in axes
    ]
    return union([moved(rest, axis_of), *hit])


def transferred(
    eqn: Any, operands: Sequence[TaintedValue], line: Callable[[], str]
) -> list[TaintedValue]:
    """The results of an operation that has no jaxpr and no ref.

    Args:
      eqn: the equation.
      operands: what is known of its operands.
      line: gives ``file:line`` of it.
    """
    name = eqn.primitive.name
    positional = any(value.positional for value in operands)
    if not eqn.outvars:  # a print, or a unit's registers
        return []
    if not any(value.marks for value in operands):
        return [TaintedValue(positional=positional)] * len(eqn.outvars)
    summing = name in _REDUCTIONS | _CUMULATIVE | {"sort", "dot_general"}
    by = (name, line() if summing else "")
    if name == "select_n":
        marks: Taints = _selected(operands)
        positional = positional or not marks
    elif name in _ELEMENTWISE:
        marks = _elementwise(eqn, operands)
    elif name in _REDUCTIONS:
        axes = tuple(eqn.params["axes"])
        kept = [a for a in range(eqn.invars[0].aval.ndim) if a not in axes]
        marks = contaminated(operands[0].marks, axes, by, _position_in(kept))
    elif name in _CUMULATIVE:
        # What comes after the edge cannot reach back, unless it goes the other way.
        axes = (eqn.params["axis"],) if eqn.params["reverse"] else ()
        marks = contaminated(operands[0].marks, axes, by, _same)
    elif name == "sort":
        parts = [contaminated(v.marks, (eqn.params["dimension"],), by, _same) for v in operands]
        marks = union(parts)
    elif name == "dot_general":
        marks = _product(eqn, operands, by)
    else:
        marks = _rearranged(eqn, operands)
    return [TaintedValue(marks, positional)] * len(eqn.outvars)


def _same(axis: int) -> int | None:
    return axis


def _position_in(axes: Sequence[int]) -> Callable[[int], int | None]:
    places = {axis: i for i, axis in enumerate(axes)}
    return places.get


def _selected(operands: Sequence[TaintedValue]) -> Taints:
    """``select_n``: a choice by position clears; one by the tainted values themselves does not."""
    which, *cases = operands
    if which.points is not None:
        parts = [at(case.marks, which.points == i) for i, case in enumerate(cases)]
        return union(parts)
    if which.positional:
        return {}
    reasons = {(mark.source, mark.axis) for mark in which.marks}
    return {
        mark: points
        for mark, points in union([case.marks for case in cases]).items()
        if (mark.source, mark.axis) in reasons
    }


def _elementwise(eqn: Any, operands: Sequence[TaintedValue]) -> Taints:
    """Zero times NaN is NaN, but zero times an integer is zero, and so is ``and``."""
    exact = getattr(eqn.outvars[0].aval, "dtype", np.dtype(float)).kind in "biu"
    masks = any(value.positional and not value.marks for value in operands)
    if exact and masks and eqn.primitive.name in ("mul", "and", "or"):
        return {}
    shape = eqn.outvars[0].aval.shape
    return union(
        [
            moved(value.marks, _kept_by(getattr(var.aval, "shape", ()), shape))
            for value, var in zip(operands, eqn.invars, strict=True)
        ]
    )


def _kept_by(shape: Sequence[int], result: Sequence[int]) -> Callable[[int], int | None]:
    """Axes of an operand that are as long in the result; one of length 1 may be repeated."""
    if len(shape) != len(result):
        return lambda a: None
    return lambda a: a if shape[a] == result[a] else None


def _product(eqn: Any, operands: Sequence[TaintedValue], by: tuple[str, str]) -> Taints:
    (contracted, batched) = eqn.params["dimension_numbers"]
    exact = all(var.aval.dtype.kind in "biu" for var in eqn.invars)
    parts: list[Taints] = []
    free = len(batched[0])
    for side in (0, 1):
        sums, batch = tuple(contracted[side]), list(batched[side])
        others = [a for a in range(eqn.invars[side].aval.ndim) if a not in (*sums, *batch)]
        places = {axis: i for i, axis in enumerate(batch)}
        places |= {axis: free + i for i, axis in enumerate(others)}
        free += len(others)
        marks = operands[side].marks
        other = operands[1 - side]
        if exact and other.positional and not other.marks:
            marks = {m: p for m, p in marks.items() if m.axis not in sums}
        parts.append(contaminated(marks, sums, by, places.get))
    return union(parts)


def _rearranged(eqn: Any, operands: Sequence[TaintedValue]) -> Taints:
    """Operations that move elements; every other one is taken to return clean values."""
    name, params = eqn.primitive.name, eqn.params
    first = operands[0].marks
    shape = getattr(eqn.invars[0].aval, "shape", ())
    result = getattr(eqn.outvars[0].aval, "shape", ())
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        return moved(first, lambda a: dims[a] if shape[a] == result[dims[a]] else None)
    if name == "transpose":
        return moved(first, _position_in(params["permutation"]))
    if name == "squeeze":
        kept = [a for a in range(len(shape)) if a not in params["dimensions"]]
        return moved(first, _position_in(kept))
    if name in ("reshape", "bitcast_convert_type"):
        return moved(first, _position_after_reshape(shape, result))
    if name == "concatenate":
        return union([value.marks for value in operands])
    if name == "pad":
        return union([operands[0].marks])
    if name == "slice":
        return moved(first, lambda a: a if result[a] == shape[a] else None)
    if name == "dynamic_slice":
        return moved(first, lambda a: a if result[a] == shape[a] else None)
    return {}


def _position_after_reshape(
    shape: Sequence[int], result: Sequence[int]
) -> Callable[[int], int | None]:
    """An axis that a reshape leaves alone: as many elements before it, and as many in it."""
    before = {(math.prod(result[:i]), n): i for i, n in reversed(list(enumerate(result))) if n != 1}
    return lambda a: before.get((math.prod(shape[:a]), shape[a]))


# The body of a kernel, followed once for all grid points, on what is known of each value.
#
# Known is which of its elements lie beyond the edge of an array (``taint``), and, of scalars that
# depend on the grid point only, what they are. So branches are entered by those programs that enter
# them.


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


# How the body of a kernel uses the refs of its operands.


_LOADS = frozenset({"get", "masked_load"})
_STORES = frozenset({"swap", "masked_swap"})


@dataclass(frozen=True)
class Accesses:
    """What a body does with its refs.

    Attributes:
      used: positions of the refs of its jaxpr that some operation has.
      whole: positions of refs that every program reads or writes as a whole, whatever happens.
      offset: how many refs come before those of the windows.
      inputs: how many windows are inputs.
    """

    used: frozenset[int]
    whole: frozenset[int]
    offset: int = field(default=0)
    inputs: int = field(default=0)

    def reads(self, window: GridWindow) -> bool:
        """Whether the body uses the ref of a window at all."""
        return self._position(window) in self.used

    def always(self, window: GridWindow) -> bool:
        """Whether every program reads or writes the whole block."""
        return self._position(window) in self.whole

    def _position(self, window: GridWindow) -> int:
        return self.offset + window.position + (self.inputs if window.output else 0)


def accesses_of(call: GridCall) -> Accesses:
    """What the body of a call does with its refs."""
    body = call.body
    positions = {var: i for i, var in enumerate(body.invars)}
    used = {
        positions[var]
        for eqn in body.eqns
        for var in eqn.invars
        if not hasattr(var, "val") and var in positions
    }
    whole: set[int] = set()
    _whole(body, positions, whole)
    return Accesses(
        used=frozenset(used),
        whole=frozenset(whole),
        offset=len(call.facts.scalars),
        inputs=len(call.facts.inputs),
    )


def _whole(jaxpr: Any, positions: dict[Any, int], whole: set[int]) -> None:
    """Accesses of whole refs that no branch or loop guards; what is only called is entered."""
    for eqn in jaxpr.eqns:
        called = called_jaxpr(eqn)
        if called is not None:
            inner = {
                var: positions[operand]
                for var, operand in zip(called[0].invars, eqn.invars, strict=True)
                if not hasattr(operand, "val") and operand in positions
            }
            _whole(called[0], inner, whole)
        elif eqn.primitive.name in _LOADS | _STORES and eqn.invars[0] in positions and _covers(eqn):
            whole.add(positions[eqn.invars[0]])


def _covers(eqn: Any) -> bool:
    """Whether an access is to the whole ref, and not masked."""
    shape = eqn.invars[0].aval.shape
    if "masked" in eqn.primitive.name:
        window, _, masked = masked_window(eqn, eqn.invars)
        if masked:
            return False
    else:
        window = window_of(eqn, eqn.invars[2 if eqn.primitive.name == "swap" else 1 :])
    if window is None:
        return False
    return all(
        isinstance(getattr(index, "start", None), int)
        and index.start == 0
        and index.size == size
        and index.stride == 1
        for index, size in zip(window, shape, strict=False)
    )
