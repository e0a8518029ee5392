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

from pytest_pallas.analysis.grid.bodies.scalars import Points


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
