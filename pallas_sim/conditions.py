"""What the conditions and bounds of a kernel's body depend on, and which values they can have.

A condition that one program of a kernel always decides alike is no branch there: ``pl.program_id(2)
== 0`` where the grid has one step along axis 2. ``KernelConditions`` follows a condition back to
what it is computed from, through the jaxprs around it, with the interval of each value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import is_literal, is_reference, open_jaxpr, scan_parts, sub_jaxprs

#: What a value depends on: ``("program_id", axis)``, ``("num_programs", axis)``, ``("scalar",
#: number of the operand)``, ``("memory", number of the scratch operand)``, ``("axis_index",
#: position of the axis in the mesh)``, ``("loop", 0)`` for the counter of a loop.
Source = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known of a value before a kernel runs.

    Attributes:
      low: its least value; of booleans 0 or 1.
      high: its largest. What has no bound is taken not to wrap around.
      sources: what it depends on.
      source: the only thing that it is a line of, or None.
      factor: it is ``factor * source + offset``.
      offset: as above.
      turns: whether it goes round, as a remainder does.
      test: of a comparison of one thing with a constant: the thing, the operator, and the constant.
      measures: whether it comes from comparing floats.
      counts: of the rounds of a loop, whether a counter goes up to a bound.
    """

    low: float = -math.inf
    high: float = math.inf
    sources: tuple[Source, ...] = ()
    source: Source | None = None
    factor: int = 1
    offset: int = 0
    turns: bool = False
    test: tuple[Source, str, int] | None = None
    measures: bool = False
    counts: bool = False

    @property
    def constant(self) -> float | None:
        """Its value if there is only one, else None."""
        return self.low if self.low == self.high else None


UNKNOWN = Interval()


def exactly(value: float) -> Interval:
    """Return the interval of one value."""
    return Interval(value, value)


def counting(low: float, high: float, source: Source) -> Interval:
    """Return the interval of a thing that others depend on."""
    return Interval(low, high, (source,), source)


@dataclass(eq=False)
class _CalledJaxpr:
    """A jaxpr where it is called.

    Attributes:
      jaxpr: open.
      known: intervals of its inputs.
      bound: its other inputs: the operand that each is, and the frame of that.
    """

    jaxpr: Any
    known: dict[Any, Interval] = field(default_factory=dict[Any, Interval])
    bound: dict[Any, tuple[Any, _CalledJaxpr]] = field(default_factory=dict[Any, Any])

    @functools.cached_property
    def definitions(self) -> Mapping[Any, Any]:
        """The equation of each result."""
        return {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}

    def bind(self, variables: Sequence[Any], atoms: Sequence[Any], outer: _CalledJaxpr) -> None:
        """Let inputs be operands of an equation outside."""
        self.bound.update((var, (atom, outer)) for var, atom in zip(variables, atoms, strict=False))


_PLURAL = {False: "ex", True: "ices"}

#: Parameters of equations that are jaxprs.
_JAXPRS = frozenset(
    {"jaxpr", "jaxprs", "branches", "cond_jaxpr", "body_jaxpr", "call_jaxpr", "fun_jaxpr", "call"}
)


class KernelConditions:
    """Follows the conditions of one kernel."""

    def __init__(self, kernel: Any, sizes: Sequence[int | None]) -> None:
        """Find the jaxprs of a kernel.

        Args:
          kernel: its equation.
          sizes: of the grid that the body sees, or of the axes of its mesh.
        """
        self.sizes = tuple(sizes)
        self._kernel = kernel
        self._frames: dict[int, list[_CalledJaxpr]] = {}
        self._values: dict[tuple[int, int], Interval] = {}
        self._inner: dict[tuple[int, int], list[_CalledJaxpr]] = {}
        self._names = mesh_axes(kernel)
        for jaxpr in kernel.params.get("jaxprs") or (kernel.params["jaxpr"],):
            inner = open_jaxpr(jaxpr)[0]
            frame = _CalledJaxpr(inner)
            frame.known.update(_inputs(kernel, inner))
            self._enter(frame, 0)

    def _enter(self, frame: _CalledJaxpr, depth: int) -> None:
        for eqn in frame.jaxpr.eqns:
            self._frames.setdefault(id(eqn), []).append(frame)
            if depth < 32 and not _JAXPRS.isdisjoint(eqn.params):
                for inner in self._inside(eqn, frame):
                    self._enter(inner, depth + 1)

    def _inside(self, eqn: Any, outer: _CalledJaxpr) -> list[_CalledJaxpr]:
        """Return the frames of the jaxprs of an equation, made once."""
        key = (id(eqn), id(outer))
        if key not in self._inner:
            self._inner[key] = self._made(eqn, outer)
        return self._inner[key]

    def _made(self, eqn: Any, outer: _CalledJaxpr) -> list[_CalledJaxpr]:
        name, frames = eqn.primitive.name, [_CalledJaxpr(jaxpr) for jaxpr in sub_jaxprs(eqn)]
        if name == "cond":
            for frame in frames:
                frame.bind(frame.jaxpr.invars, eqn.invars[1:], outer)
        elif name == "scan":
            self._bind_scan(eqn, frames[0], outer)
        elif name == "while":
            condition, body = (
                _CalledJaxpr(open_jaxpr(eqn.params[part])[0])
                for part in ("cond_jaxpr", "body_jaxpr")
            )
            frames = [condition, body]
            self._bind_while(eqn, condition, body, outer)
        elif name == "run_scoped":
            frames[0].bind(frames[0].jaxpr.constvars, eqn.invars, outer)
        elif len(frames) == 1 and len(frames[0].jaxpr.invars) == len(eqn.invars):
            frames[0].bind(frames[0].jaxpr.invars, eqn.invars, outer)
        return frames

    def _bind_scan(self, eqn: Any, frame: _CalledJaxpr, outer: _CalledJaxpr) -> None:
        consts, carried, _ = scan_parts(eqn.params, len(eqn.invars))
        inputs, length = frame.jaxpr.invars, int(eqn.params["length"])
        frame.bind(inputs[:consts], eqn.invars[:consts], outer)
        carries = zip(inputs[consts:], eqn.invars[consts:], frame.jaxpr.outvars, strict=False)
        for number, (var, start, end) in enumerate(carries):
            if number == carried:
                break
            if end is var:
                frame.bind([var], [start], outer)
            else:
                step = _step(frame, var, end)
                frame.known[var] = _carried(self.value(start, outer), step, length)

    def _bind_while(
        self, eqn: Any, condition: _CalledJaxpr, body: _CalledJaxpr, outer: _CalledJaxpr
    ) -> None:
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        condition.bind(condition.jaxpr.invars, eqn.invars[:first], outer)
        body.bind(body.jaxpr.invars, eqn.invars[first : first + second], outer)
        starts = eqn.invars[first + second :]
        inside = body.jaxpr.invars[second:]
        tested = condition.jaxpr.invars[first:]
        bounds = self._bounds(eqn, condition, tested, inside, body, outer)
        rounds = math.inf if bounds is None else bounds[1].high - bounds[0].low
        for var, test, start, end in zip(inside, tested, starts, body.jaxpr.outvars, strict=True):
            if end is var:
                body.bind([var], [start], outer)
                condition.bind([test], [start], outer)
                continue
            value, step = self.value(start, outer), _step(body, var, end)
            body.known[var] = _carried(value, step, rounds)
            condition.known[test] = _carried(value, step, rounds + 1)

    def _bounds(
        self,
        eqn: Any,
        condition: _CalledJaxpr,
        tested: Sequence[Any],
        inside: Sequence[Any],
        body: _CalledJaxpr,
        outer: _CalledJaxpr,
    ) -> tuple[Interval, Interval] | None:
        """Return the first value of the counter of a ``while``, and its bound, as of ``fori``."""
        test = condition.definitions.get(condition.jaxpr.outvars[0])
        if test is None or test.primitive.name != "lt":
            return None
        counter, bound = test.invars
        starts = eqn.invars[eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] :]
        if is_literal(counter) or counter not in tested:
            return None
        number = tested.index(counter)
        if _step(body, inside[number], body.jaxpr.outvars[number]) != 1:
            return None
        if not is_literal(bound) and bound in tested:
            at = tested.index(bound)
            if body.jaxpr.outvars[at] is not inside[at]:
                return None
            return self.value(starts[number], outer), self.value(starts[at], outer)
        return self.value(starts[number], outer), self.value(bound, condition)

    def value(self, atom: Any, frame: _CalledJaxpr) -> Interval:
        """Return what is known of an operand in a frame."""
        if is_literal(atom):
            return _literal(atom.val)
        key = (id(atom), id(frame))
        value = self._values.get(key)
        if value is None:
            self._values[key] = UNKNOWN
            value = self._values[key] = _held(self._computed(atom, frame), atom.aval)
        return value

    def results(self, grid: Sequence[int | None]) -> Iterator[tuple[Any, Any, Interval]]:
        """Yield each value that a ``pallas_call`` computes, before its dtype wraps it around.

        That is its equation, or the first one that uses what a loop carries, the variable, and what
        is known; also in its index maps.

        Args:
          grid: its sizes, with those of axes that the body does not see.
        """
        facts = grid_facts(self._kernel)
        for block in (*facts.inputs, *facts.outputs):
            index_map = _CalledJaxpr(open_jaxpr(block.index_map)[0])
            for axis, (var, size) in enumerate(zip(index_map.jaxpr.invars, grid, strict=False)):
                most = math.inf if size is None else max(size - 1, 0)
                index_map.known[var] = counting(0, most, ("program_id", axis))
            self._enter(index_map, 0)
        for frame in dict.fromkeys(frame for frames in self._frames.values() for frame in frames):
            carried = dict(frame.known)
            for eqn in frame.jaxpr.eqns:
                for var in eqn.outvars:
                    yield eqn, var, self._result(eqn, var, frame)
                for atom in eqn.invars:
                    if not is_literal(atom) and atom in carried:
                        yield eqn, atom, carried.pop(atom)

    def _computed(self, atom: Any, frame: _CalledJaxpr) -> Interval:
        known = frame.known.get(atom)
        if known is not None:
            return known
        if atom in frame.bound:
            return self.value(*frame.bound[atom])
        eqn = frame.definitions.get(atom)
        return UNKNOWN if eqn is None else self._result(eqn, atom, frame)

    def _result(self, eqn: Any, atom: Any, frame: _CalledJaxpr) -> Interval:
        name, params = eqn.primitive.name, eqn.params
        if name in ("program_id", "num_programs"):
            axis = params["axis"]
            size = self.sizes[axis] if axis < len(self.sizes) else None
            most = math.inf if size is None else size
            if name == "program_id":
                return counting(0, max(most - 1, 0), (name, axis))
            return replace(UNKNOWN, sources=((name, axis),)) if size is None else exactly(most)
        if name == "iota":
            return Interval(0, max(params["shape"][params["dimension"]] - 1, 0))
        if name == "axis_index":
            axis = params.get("axis_name")
            size = self._names.get(axis)
            position = list(self._names).index(axis) if size is not None else 0
            return counting(0, math.inf if size is None else size - 1, (name, position))
        if name in ("jit", "pjit", "closed_call", "custom_jvp_call", "core_call"):
            frames = self._inside(eqn, frame)
            if params.get("name") == "floor_divide":  # else by the signs, which do not matter here
                value = _quotient(*(self.value(operand, frame) for operand in eqn.invars))
                if value.low >= 0:
                    sources = [self.value(operand, frame).sources for operand in eqn.invars]
                    return replace(value, sources=tuple(dict.fromkeys(sum(sources, ()))))
            if len(frames) == 1:
                inner = frames[0]
                return self.value(inner.jaxpr.outvars[eqn.outvars.index(atom)], inner)
        values = [self.value(operand, frame) for operand in eqn.invars]
        sources = tuple(dict.fromkeys(source for value in values for source in value.sources))
        measures = any(value.measures for value in values) or (
            (name in _SIGNS or name == "is_finite") and _is_float(eqn.invars[0].aval)
        )
        compute = _COMPUTE.get(name)
        if compute is None or (name == "div" and _is_float(eqn.invars[0].aval)):
            turns = name == "xor" or any(value.turns for value in values)
            return Interval(sources=sources, turns=turns, measures=measures)
        value = compute(*values)
        return replace(value, sources=sources, measures=measures)

    def axis_of(self, source: Source) -> str:
        """Return how many indices an axis of a grid or mesh has; "" for any other source."""
        name, number = source
        if name == "program_id" and number < len(self.sizes) and self.sizes[number] is not None:
            steps = self.sizes[number]
            return f"the grid has {steps} step{'s' * (steps != 1)} along axis {number}"
        if name == "axis_index" and number < len(self._names):
            axis = list(self._names)[number]
            return f"the axis {axis!r} has {self._names[axis]} ind{_PLURAL[self._names[axis] != 1]}"
        return ""

    def has(self, eqn: Any) -> bool:
        """Return whether an equation is one of the kernel's."""
        return id(eqn) in self._frames

    def of_operand(self, eqn: Any, position: int) -> Interval:
        """Return what is known of an operand of an equation."""
        return self._everywhere(eqn, lambda frame: self.value(eqn.invars[position], frame))

    def of_rounds(self, eqn: Any) -> Interval:
        """Return what is known of the number of rounds of a loop."""
        if eqn.primitive.name == "scan":
            return exactly(int(eqn.params["length"]))
        if eqn.primitive.name not in ("while", "parallel_loop"):
            return UNKNOWN
        rounds = self._rounds if eqn.primitive.name == "while" else self._parallel_rounds
        return self._everywhere(eqn, lambda frame: rounds(eqn, frame))

    def _parallel_rounds(self, eqn: Any, frame: _CalledJaxpr) -> Interval:
        lower, upper, step, *_ = eqn.params["tree"].unflatten(eqn.invars)
        start, end, stride = (self.value(atom, frame) for atom in (lower, upper, step))
        length, size = _difference(end, start), stride.constant
        if not size:
            return Interval(low=0, sources=length.sources)
        low, high = (
            n if math.isinf(n) else max(0, -(-n // size)) for n in (length.low, length.high)
        )
        source = length.source if size == 1 else None
        return replace(length, low=max(low, 0), high=high, source=source, counts=True)

    def _rounds(self, eqn: Any, frame: _CalledJaxpr) -> Interval:
        condition, body = self._inside(eqn, frame)
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        tested, inside = condition.jaxpr.invars[first:], body.jaxpr.invars[second:]
        bounds = self._bounds(eqn, condition, tested, inside, body, frame)
        if bounds is None:
            sources = self.value(condition.jaxpr.outvars[0], condition).sources
            return Interval(low=0, sources=tuple(s for s in sources if s != ("loop", 0)))
        start, end = bounds
        sources = tuple(dict.fromkeys((*end.sources, *start.sources)))
        rounds = replace(_difference(end, start), sources=sources)
        return replace(rounds, low=max(rounds.low, 0), high=max(rounds.high, 0), counts=True)

    def _everywhere(self, eqn: Any, value: Callable[[_CalledJaxpr], Interval]) -> Interval:
        """Return what is known of something wherever its jaxpr is called."""
        values = [value(frame) for frame in self._frames.get(id(eqn), ())[:8]]
        return functools.reduce(_either, values) if values else UNKNOWN


def mesh_axes(kernel: Any) -> dict[Any, int]:
    """Return the sizes of the axes that a kernel runs on, by name; none of a ``pallas_call``."""
    axes: dict[Any, int] = {}
    for mesh in kernel.params.get("meshes") or ():
        axes.update(getattr(mesh, "shape", None) or {})
    return axes


def _inputs(kernel: Any, jaxpr: Any) -> dict[Any, Interval]:
    """Return what is known of the inputs of a kernel's body."""
    captured, mapping = len(jaxpr.constvars), kernel.params.get("grid_mapping")
    operands = len(kernel.invars) - captured
    if mapping is not None:
        operands -= sum(1 for size in mapping.grid if not isinstance(size, int))
    outputs = len(kernel.outvars)
    inputs: dict[Any, Interval] = {}
    for number, var in enumerate(jaxpr.invars):
        source: Source = ("scalar", number)
        if number >= operands:
            source = ("memory", max(number - operands - outputs, 0))
        inputs[var] = (
            Interval(sources=(source,))
            if is_reference(var.aval)
            else counting(-math.inf, math.inf, source)
        )
    return inputs


def _step(frame: _CalledJaxpr, var: Any, end: Any) -> int | None:
    """Return the constant that each round of a loop adds to a value that it carries, or None."""
    eqn = None if is_literal(end) else frame.definitions.get(end)
    if eqn is None or eqn.primitive.name != "add" or not any(atom is var for atom in eqn.invars):
        return None
    steps = [_literal(atom.val).constant for atom in eqn.invars if is_literal(atom)]
    return int(steps[0]) if len(steps) == 1 and steps[0] not in (None, 0) else None


def _carried(first: Interval, step: int | None, rounds: float) -> Interval:
    """Return the interval of what a loop of so many rounds carries and adds a step to."""
    if step is None:
        return replace(first, low=-math.inf, high=math.inf, source=None, turns=True, test=None)
    added = step * max(rounds - 1, 0)
    source = ("loop", 0)
    low, high = min(first.low, first.low + added), max(first.high, first.high + added)
    return Interval(low, high, (source,), source if step == 1 else None)


def _is_float(aval: Any) -> bool:
    return getattr(getattr(aval, "dtype", None), "kind", "") not in ("i", "u", "b", "")


def _held(value: Interval, aval: Any) -> Interval:
    """Return what is known of a value once its dtype holds it: nothing if it may wrap around."""
    dtype = getattr(aval, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return value
    info = np.iinfo(dtype)
    wraps = any(
        math.isfinite(end) and not info.min <= end <= info.max for end in (value.low, value.high)
    )
    return Interval(sources=value.sources, turns=True, measures=value.measures) if wraps else value


def _literal(value: Any) -> Interval:
    number = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(number, (bool, int, float)) or math.isnan(number):
        return UNKNOWN
    return exactly(number)


def _either(one: Interval, other: Interval) -> Interval:
    if one == other:
        return one
    return Interval(
        min(one.low, other.low),
        max(one.high, other.high),
        tuple(dict.fromkeys((*one.sources, *other.sources))),
        turns=one.turns or other.turns,
        measures=one.measures or other.measures,
    )


def _same(value: Interval, *_: Interval) -> Interval:
    return value


def _sum(one: Interval, other: Interval) -> Interval:
    low, high = one.low + other.low, one.high + other.high
    turns = one.turns or other.turns
    for line, constant in ((one, other.constant), (other, one.constant)):
        if line.source is not None and constant is not None:
            return replace(line, low=low, high=high, offset=line.offset + int(constant), test=None)
    return Interval(low, high, turns=turns)


def _negative(value: Interval) -> Interval:
    return replace(
        value,
        low=-value.high,
        high=-value.low,
        factor=-value.factor,
        offset=-value.offset,
        test=None,
    )


def _difference(one: Interval, other: Interval) -> Interval:
    return _sum(one, _negative(other))


def _product(one: Interval, other: Interval) -> Interval:
    for line, constant in ((one, other.constant), (other, one.constant)):
        if constant is not None and math.isfinite(constant) and constant == int(constant):
            factor = int(constant)
            if not factor:
                return exactly(0)
            ends = (line.low * factor, line.high * factor)
            return replace(
                line,
                low=min(ends),
                high=max(ends),
                factor=line.factor * factor,
                offset=line.offset * factor,
                test=None,
            )
    return _of_corners(_times, one, other)


def _times(one: float, other: float) -> float:
    return 0 if not one or not other else one * other


def _of_corners(
    function: Callable[[float, float], float], one: Interval, other: Interval
) -> Interval:
    """Return the interval of a function that is monotone in each operand."""
    corners = [function(x, y) for x in (one.low, one.high) for y in (other.low, other.high)]
    return Interval(min(corners), max(corners), turns=one.turns or other.turns)


def _quotient(one: Interval, other: Interval) -> Interval:
    """Return the interval of a quotient of integers, rounded towards 0."""
    if other.low <= 0 <= other.high:
        return Interval(turns=one.turns)
    return _of_corners(_divided, one, other)


def _divided(one: float, other: float) -> float:
    size = 0 if math.isinf(other) else abs(one) if math.isinf(one) else abs(one) // abs(other)
    return size if (one < 0) == (other < 0) else -size


def _remainder(one: Interval, other: Interval) -> Interval:
    """Return the interval of a remainder, which has the sign of the first operand."""
    if other.low <= 0 <= other.high:
        return Interval(turns=True)
    if one.low >= 0 and one.high < min(abs(other.low), abs(other.high)):
        return replace(one, turns=True, test=None)
    most = max(abs(other.low), abs(other.high)) - 1
    return Interval(max(min(one.low, 0), -most), min(max(one.high, 0), most), turns=True)


def _shifted(value: Interval, by: Interval, *, left: bool) -> Interval:
    """Return the interval of the bits of a number, moved."""
    if not 0 <= by.low <= by.high < _BITS:
        return Interval(turns=value.turns)
    factor = Interval(2**by.low, 2**by.high)
    return _product(value, factor) if left else _of_corners(_floored, value, factor)


def _floored(one: float, other: float) -> float:
    return one if math.isinf(one) else one // other


def _shifted_bits(value: Interval, by: Interval) -> Interval:
    """Return the interval of bits that are moved right, with zeros in their place."""
    return _shifted(value, by, left=False) if value.low >= 0 else Interval(turns=value.turns)


def _maximum(one: Interval, other: Interval) -> Interval:
    return Interval(max(one.low, other.low), max(one.high, other.high))


def _clamped(low: Interval, value: Interval, high: Interval) -> Interval:
    ends = _minimum(_maximum(low, value), high)
    return replace(value, low=ends.low, high=ends.high, test=None)


def _minimum(one: Interval, other: Interval) -> Interval:
    return Interval(min(one.low, other.low), min(one.high, other.high))


_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "ge": ">=", "le": "<=", "gt": ">"}
_NAMES = {sign: name for name, sign in _SIGNS.items()}


def _compared(name: str) -> Callable[..., Interval]:
    def compare(one: Interval, other: Interval) -> Interval:
        low, high = _decided(name, one, other)
        test = None
        if other.constant is not None:
            test = line_test(one, _SIGNS[name], other.constant)
        elif one.constant is not None:
            test = line_test(other, _SIGNS[_MIRRORED[name]], one.constant)
        return Interval(low, high, turns=one.turns or other.turns, test=test)

    return compare


def _decided(name: str, one: Interval, other: Interval) -> tuple[int, int]:
    """Return the least and the largest truth of a comparison."""
    if name in ("ne", "ge", "gt"):
        low, high = _decided(_OPPOSITE[name], one, other)
        return 1 - high, 1 - low
    if name == "eq":
        if one.high < other.low or other.high < one.low:
            return 0, 0
        return int(one.constant is not None and one.constant == other.constant), 1
    if name == "lt":
        return int(one.high < other.low), int(one.low < other.high)
    return int(one.high <= other.low), int(one.low <= other.high)


def line_test(line: Interval, sign: str, constant: float) -> tuple[Source, str, int] | None:
    """Return a comparison of a line with a constant as one of the thing itself, or None."""
    if line.source is None or not math.isfinite(constant):
        return None
    name = _NAMES[sign]
    name = name if line.factor > 0 else _MIRRORED[name]
    value = (constant - line.offset) / line.factor
    if value != int(value):
        if name in ("eq", "ne"):
            return None
        value = math.floor(value) if name in ("le", "gt") else math.ceil(value)
    return line.source, _SIGNS[name], int(value)


def opposite(test: tuple[Source, str, int] | None) -> tuple[Source, str, int] | None:
    """Return the comparison that holds where another one does not."""
    return test and (test[0], _SIGNS[_OPPOSITE[_NAMES[test[1]]]], test[2])


def _opposite(value: Interval) -> Interval:
    """Return the interval of ``not``; of integers nothing is known."""
    if not (value.low >= 0 and value.high <= 1):
        return Interval(turns=value.turns)
    low, high = 1 - value.high, 1 - value.low
    return Interval(low, high, turns=value.turns, test=opposite(value.test))


def _and(one: Interval, other: Interval) -> Interval:
    if one.low >= 0 and other.low >= 0 and one.high <= 1 and other.high <= 1:
        low, high = min(one.low, other.low), min(one.high, other.high)
        if one.constant == 1 or other.constant == 1:
            return replace(other if one.constant == 1 else one, low=low, high=high)
        return Interval(low, high, turns=one.turns or other.turns)
    ends = [value.high for value in (one, other) if value.low >= 0]  # such as of ``step & 3``
    return Interval(0, min(ends), turns=True) if ends else Interval(turns=True)


def _or(one: Interval, other: Interval) -> Interval:
    if one.low >= 0 and other.low >= 0 and one.high <= 1 and other.high <= 1:
        low, high = max(one.low, other.low), max(one.high, other.high)
        if one.constant == 0 or other.constant == 0:
            return replace(other if one.constant == 0 else one, low=low, high=high)
        return Interval(low, high, turns=one.turns or other.turns)
    return Interval(turns=one.turns or other.turns)


def _chosen(which: Interval, *cases: Interval) -> Interval:
    if which.constant is not None and 0 <= which.constant < len(cases):
        return cases[int(which.constant)]
    return replace(functools.reduce(_either, cases), turns=True)


def _loaded(memory: Interval, *_: Interval) -> Interval:
    """Return the interval of what is read from memory that values are only known to come from."""
    source = memory.sources[0] if len(memory.sources) == 1 else None
    return Interval(sources=memory.sources, source=source)


#: Of the widest integers.
_BITS = 64

#: The interval of a result, of those of the operands, by primitive.
_COMPUTE: Mapping[str, Callable[..., Interval]] = {
    **dict.fromkeys(
        (
            *("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy"),
            *("stop_gradient", "multiple_of", "optimization_barrier", "reduce_precision"),
            *("expand_dims", "reduce_max", "reduce_min", "rev", "slice", "transpose"),
        ),
        _same,
    ),
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "neg": _negative,
    "div": _quotient,
    "rem": _remainder,
    "max": _maximum,
    "min": _minimum,
    "not": _opposite,
    "and": _and,
    "or": _or,
    "select_n": _chosen,
    "get": _loaded,
    "clamp": _clamped,
    "shift_left": functools.partial(_shifted, left=True),
    "shift_right_arithmetic": functools.partial(_shifted, left=False),
    "shift_right_logical": _shifted_bits,
    **{name: _compared(name) for name in _SIGNS},
}
