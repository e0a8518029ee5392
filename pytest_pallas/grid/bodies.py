"""Follow elements beyond the edge of an array through a kernel's body: a taint analysis.

``transferred`` is the taint of one operation's results, ``BodyInterpretation`` a pass through a
body. A value is tainted along an axis if its last elements come from beyond the edge of a block's
array. It is contaminated once these were reduced into the others. A value that cannot be followed
counts as clean, so that only certain errors are reported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.traces import called_by, open_jaxpr, scan_parts, source_line
from pytest_pallas.grid import scalars
from pytest_pallas.grid.scalars import Points


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

#: A value of which nothing is known. It may depend on the position.
_UNKNOWN = TaintedValue(positional=True)

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
    """Return the marks that hold in any of some cases."""
    merged: dict[Taint, Points] = {}
    for marks in parts:
        for mark, points in marks.items():
            before = merged.get(mark, points)
            merged[mark] = points if before is points else before | points
    return merged


def at(marks: Taints, points: Points) -> dict[Taint, Points]:
    """Return the marks at some grid points only."""
    limited = {mark: here & points for mark, here in marks.items()}
    return {mark: here for mark, here in limited.items() if here.any()}


def both(a: Taints, b: Taints) -> dict[Taint, Points]:
    """Return the marks that hold in both of two cases."""
    shared = {mark: points & b[mark] for mark, points in a.items() if mark in b}
    return {mark: points for mark, points in shared.items() if points.any()}


def moved(marks: Taints, axis_of: Callable[[int], int | None]) -> dict[Taint, Points]:
    """Return the marks with other axes, without those for which ``axis_of`` returns None."""
    parts: list[Taints] = []
    for mark, points in marks.items():
        axis = None if mark.axis is None else axis_of(mark.axis)
        if mark.axis is None or axis is not None:
            parts.append({replace(mark, axis=axis): points})
    return union(parts)


def contaminated(
    marks: Taints, axes: Sequence[int], by: tuple[str, str], axis_of: Callable[[int], int | None]
) -> dict[Taint, Points]:
    """Return the marks after a reduction: those along ``axes`` become contamination."""
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
    """Return the taints of the results of an operation that has no jaxpr and no ref.

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
        # Elements beyond the edge reach those before only if it runs in reverse.
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
    """Choose by ``select_n``: a mask by position clears; one by the tainted values does not."""
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
    """Unite the marks of operands; a mask clears integers, because 0 * NaN is NaN for floats."""
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
    """Map axes of an operand to those of the result, without a repeated one of length 1."""
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
    """Follow operations that move elements; every other one counts as clean."""
    first, params = operands[0].marks, eqn.params
    shape = getattr(eqn.invars[0].aval, "shape", ())
    result = getattr(eqn.outvars[0].aval, "shape", ())
    match eqn.primitive.name:
        case "broadcast_in_dim":
            dims = params["broadcast_dimensions"]
            return moved(first, lambda a: dims[a] if shape[a] == result[dims[a]] else None)
        case "transpose":
            return moved(first, _position_in(params["permutation"]))
        case "squeeze":
            kept = [a for a in range(len(shape)) if a not in params["dimensions"]]
            return moved(first, _position_in(kept))
        case "reshape" | "bitcast_convert_type":
            return moved(first, _position_after_reshape(shape, result))
        case "concatenate":
            return union([value.marks for value in operands])
        case "pad":
            return first
        case "slice" | "dynamic_slice":
            return moved(first, _kept_by(shape, result))
        case _:
            return {}


def _position_after_reshape(
    shape: Sequence[int], result: Sequence[int]
) -> Callable[[int], int | None]:
    """Map the axes that a reshape keeps: as many elements before them, and as many in them."""
    before = {(math.prod(result[:i]), n): i for i, n in reversed(list(enumerate(result))) if n != 1}
    return lambda a: before.get((math.prod(shape[:a]), shape[a]))


# The body of a kernel, followed once for all grid points.


@dataclass(eq=False)
class RefContent:
    """The content of a ref, which changes while the body is followed.

    Attributes:
      content: what is known of it.
      known: its values, if they are prefetched and known.
    """

    content: TaintedValue = CLEAN
    known: Points | None = None


@dataclass(eq=False)
class BodyInterpretation:
    """One pass through a body: an abstract interpretation (Cousot and Cousot, 1977).

    It knows which elements of a value lie beyond the edge of an array (``Taint``), and the values
    of scalars that depend on the grid point only. So it knows which programs enter a branch:
    ``active`` is a bool[points] of them.

    Attributes:
      points: int32[dims, points], the programs that are followed.
      vmapped: dims that the body does not count.
      sizes: of the grid.
      stored: contamination that was stored, with the points at which.
      sure: False inside of branches and loops if it is not known which programs enter them.
    """

    points: Points
    vmapped: Sequence[int]
    sizes: Sequence[int | None]
    stored: list[tuple[Taint, Points]] = field(default_factory=list[tuple[Taint, Points]])
    sure: bool = True

    def follow(self, jaxpr: Any, environment: dict[Any, Any], active: Points) -> list[Any]:
        """Follow a jaxpr at the ``active`` points; returns what is known of its outputs."""

        def read(var: Any) -> Any:
            if not hasattr(var, "val"):
                return environment.get(var, CLEAN)
            if np.ndim(var.val):
                return CLEAN
            return TaintedValue(points=self._everywhere(var.val, var.aval.dtype))

        for eqn in jaxpr.eqns:
            results = self._step(eqn, [read(var) for var in eqn.invars], active, read)
            environment.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _enter(self, jaxpr: Any, inputs: Sequence[Any], active: Points) -> list[Any]:
        return self.follow(jaxpr, dict(zip(jaxpr.invars, inputs, strict=True)), active)

    def _everywhere(self, value: Any, dtype: Any = np.int32) -> Points:
        return np.full(self.points.shape[1], value, dtype)

    def _step(self, eqn: Any, operands: Sequence[Any], active: Points, read: Any) -> Sequence[Any]:
        called = called_by(eqn)
        if called is not None:
            return self._enter(called[0], operands, active)
        match eqn.primitive.name:
            case "get" | "masked_load" | "swap" | "masked_swap" | "addupdate":
                return self._access(eqn, operands[0], active, read)
            case "program_id":
                here = scalars.coordinate(eqn, self.points, self.vmapped)
                return [TaintedValue(points=here, positional=True)]
            case "num_programs":
                counted = [n for dim, n in enumerate(self.sizes) if dim not in self.vmapped]
                size = counted[eqn.params["axis"]]
                points = None if size is None else self._everywhere(size)
                return [TaintedValue(points=points, positional=size is None)]
            case "iota":
                return [_UNKNOWN]
            case "cond":
                return self._branches(eqn, operands, active)
            case "scan" | "while":
                return self._loop(eqn, operands, active)
            case "run_scoped":
                jaxpr, _ = open_jaxpr(eqn.params["jaxpr"])
                environment: dict[Any, Any] = dict(zip(jaxpr.constvars, operands, strict=False))
                environment.update({var: RefContent() for var in jaxpr.invars})
                return self.follow(jaxpr, environment, active)
            case _:
                return self._operation(eqn, operands)

    def _operation(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        refs = [operand for operand in operands if isinstance(operand, RefContent)]
        for ref in refs:  # a copy or another operation that is not followed
            ref.content = _UNKNOWN
        if refs:
            return [_UNKNOWN] * len(eqn.outvars)
        results = transferred(eqn, operands, lambda: source_line(eqn) or "")
        if len(results) == 1:
            numbers = scalars.applied(eqn, [value.points for value in operands])
            return results if numbers is None else [replace(results[0], points=numbers)]
        return results

    def _access(self, eqn: Any, ref: Any, active: Points, read: Any) -> Sequence[TaintedValue]:
        """Load or store. After a store to a part of a ref, the ref counts as clean."""
        access, shape = scalars.access_of(eqn), eqn.invars[0].aval.shape
        if not isinstance(ref, RefContent):
            return [_UNKNOWN] * len(eqn.outvars)
        window = access.window
        if window and len(window) != len(shape):
            window = None  # the ref has another layout than its index
        axes = None if window is None or access.masked else _kept(window, shape)
        loaded = self._loaded(ref, window, axes, read)
        if access.stored is not None:
            stored = read(access.stored)
            if self.sure:  # contamination that is stored is an error
                self.stored += [
                    (m, at & active) for m, at in stored.marks.items() if m.axis is None
                ]
            whole = axes is not None and len(axes) == len(shape) and None not in axes.values()
            parts = [stored.marks] if whole and self.sure else []
            parts += [ref.content.marks] if whole and eqn.primitive.name == "addupdate" else []
            marks = union([at(ref.content.marks, ~active), at(union(parts), active)])
            positional = ref.content.positional or stored.positional or not whole
            ref.content = TaintedValue(marks, positional)
        return [loaded] * len(eqn.outvars)

    def _loaded(
        self, ref: RefContent, window: Any, axes: dict[int, int | None] | None, read: Any
    ) -> TaintedValue:
        if axes is None or window is None:
            return _UNKNOWN
        if ref.known is not None:
            numbers = scalars.indexed(np.asarray(ref.known), window, lambda var: read(var).points)
            if numbers is not None:
                numbers = np.broadcast_to(numbers, (self.points.shape[1],))
                return TaintedValue(points=numbers, positional=True)
        single = bool(window) and not any(hasattr(index, "start") for index in window)
        return TaintedValue(moved(ref.content.marks, axes.get), ref.content.positional or single)

    def _branches(self, eqn: Any, operands: Sequence[Any], active: Points) -> Sequence[Any]:
        which, *rest = operands
        branches = [open_jaxpr(branch)[0] for branch in eqn.params["branches"]]
        before, self.sure = self.sure, self.sure and which.points is not None
        parts = [active] * len(branches)
        if which.points is not None:
            chosen = np.clip(which.points, 0, len(branches) - 1).astype(int)
            parts = [active & (chosen == number) for number in range(len(branches))]
        pairs = zip(branches, parts, strict=True)
        results = [self._enter(branch, rest, part) for branch, part in pairs]
        self.sure = before
        merged: list[Any] = []
        for values in zip(*results, strict=True):
            if which.points is None:
                marks = functools.reduce(both, [value.marks for value in values])
                merged.append(TaintedValue(marks, True))
                continue
            marks = union([at(v.marks, part) for v, part in zip(values, parts, strict=True)])
            numbers = None
            if all(value.points is not None for value in values):
                numbers = np.choose(chosen, [value.points for value in values])  # pyright: ignore[reportPossiblyUnboundVariable]
            positional = which.positional or any(value.positional for value in values)
            merged.append(TaintedValue(marks, positional, numbers))
        return merged

    def _loop(self, eqn: Any, operands: Sequence[Any], active: Points) -> Sequence[Any]:
        """Follow the first two rounds of a loop; what holds after both is known behind it."""
        params, length, tests = eqn.params, eqn.params.get("length"), 0
        if eqn.primitive.name == "scan":
            body, _ = open_jaxpr(params["jaxpr"])
            consts, carried, _ = scan_parts(params, len(operands))
        else:
            body, _ = open_jaxpr(params["body_jaxpr"])
            tests, consts = params["cond_nconsts"], params["body_nconsts"]
            carried = len(operands) - tests - consts
        constants = operands[tests : tests + consts]
        start = operands[tests + consts :][:carried]
        slices = [_UNKNOWN] * (len(body.invars) - consts - carried)
        ends: list[Sequence[Any]] = []
        carry, here, before = start, active, self.sure
        for turn in range(2):
            entered: Points | None
            if length is not None:
                entered = here & (turn < length)
            else:
                condition, _ = open_jaxpr(params["cond_jaxpr"])
                [goes_on] = self._enter(condition, [*operands[:tests], *carry], here)
                entered = None if goes_on.points is None else here & goes_on.points.astype(bool)
            self.sure = self.sure and entered is not None
            here = here if entered is None else entered
            if not here.any():
                break
            carry = self._enter(body, [*constants, *carry, *slices], here)[:carried]
            ends.append(carry)
        self.sure = before
        others = [_UNKNOWN] * (len(eqn.outvars) - carried)
        if not ends:
            return [*start, *others]
        results: list[Any] = []
        for first, *values in zip(start, *ends, strict=True):
            if any(isinstance(value, RefContent) for value in (first, *values)):
                results.append(first)
                continue
            # After a loop that was certainly entered, the first value is gone.
            known = values if length else [first, *values]
            marks = functools.reduce(both, [value.marks for value in known])
            results.append(TaintedValue(marks, True))
        return [*results, *others]


def _kept(window: Sequence[Any], shape: Sequence[int]) -> dict[int, int | None]:
    """Return the axis of the result for each axis of a ref that an access keeps.

    It is None for an axis of which only a part is accessed.
    """
    axes: dict[int, int | None] = {}
    for axis, size in enumerate(shape):
        index = window[axis] if window else None
        if index is None:
            axes[axis] = len(axes)
        elif hasattr(index, "start"):
            full = isinstance(index.start, int) and index.start == 0 and index.size == size
            axes[axis] = len(axes) if full else None
    return axes
