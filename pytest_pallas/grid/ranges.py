"""Ranges of positions in a kernel: where one does not fit into a narrow integer.

A position is computed from numbers of programs, counters of loops, ``iota`` and constants. In int16
it is right up to 32,767, which is more than most examples have. ``narrow_values`` follows the
ranges through the body of a kernel, and ``overflows`` makes findings of those that wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.traces import is_literal, open_jaxpr, scan_parts, source_line
from pytest_pallas.grid.findings import GridFinding
from pytest_pallas.grid.kernel_calls import KernelCall, called_jaxpr

#: The least and the largest number that a value can be; None where that is not known.
type Range = tuple[int, int] | None

#: Integers of so many bytes hold numbers that sizes of arrays exceed.
_NARROW = 2


@dataclass(frozen=True)
class NarrowValue:
    """A value of a narrow integer dtype whose range is known.

    Attributes:
      dtype: its name.
      range: the numbers before they wrap around.
      line: where it is computed, ``file:line``, or "".
    """

    dtype: str
    range: tuple[int, int]
    line: str

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number of the dtype."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def fits(self) -> bool:
        """Whether the dtype holds all of the range."""
        (least, most), (low, high) = self.range, self.limits
        return low <= least and most <= high


def overflows(
    call: KernelCall, grid: Sequence[int | None], where: str = ""
) -> Iterator[GridFinding]:
    """Yield a finding for each line of a kernel where a position wraps around.

    Args:
      call: a ``pallas_call``.
      grid: its sizes; None where one is not known.
      where: for messages, the sizes of the call if they are not those of the example.
    """
    lines = set[str]()
    for value in narrow_values(call, grid):
        if value.fits or value.line in lines:
            continue
        lines.add(value.line)
        (least, most), (low, high) = value.range, value.limits
        yield GridFinding(
            kind="overflow",
            severity="error",
            kernel=call.name,
            source=call.source,
            operand=value.line or value.dtype,
            programs=(),
            message=f"{where}in a grid of {tuple(grid)} this is a number from {least} to {most}, "
            f"but {value.dtype} holds {low} to {high}: it wraps around.",
            remedy="Compute positions in int32, or reject sizes for which they do not fit.",
        )


def narrow_values(call: KernelCall, grid: Sequence[int | None]) -> list[NarrowValue]:
    """List the positions in int8, int16 and their like, in a kernel's body and its index maps.

    Those whose range is known.

    Args:
      call: a ``pallas_call``.
      grid: its sizes; None where one is not known.
    """
    assert call.facts is not None
    counted = [size for axis, size in enumerate(grid) if axis not in call.facts.vmapped]
    values: list[NarrowValue] = []
    walk = _RangeWalk(counted, values)
    jaxpr, _ = open_jaxpr(call.eqn.params["jaxpr"])
    walk.outputs(jaxpr, [None] * len(jaxpr.invars))
    point = [None if size is None else (0, max(size - 1, 0)) for size in grid]
    for block in (*call.facts.inputs, *call.facts.outputs):
        index_map, _ = open_jaxpr(block.index_map)
        walk.outputs(index_map, [*point, *[None] * (len(index_map.invars) - len(point))])
    return values


class _RangeWalk:
    """A walk through the body of a kernel."""

    def __init__(self, grid: Sequence[int | None], values: list[NarrowValue]) -> None:
        """Add what is narrow to ``values``."""
        self._grid = grid
        self._values = values

    def outputs(self, jaxpr: Any, inputs: Sequence[Range]) -> list[Range]:
        """Return the ranges of the results of an open jaxpr."""
        known: dict[Any, Range] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Range:
            if not is_literal(atom):
                return known.get(atom)
            exact = np.ndim(atom.val) == 0 and np.asarray(atom.val).dtype.kind in "iub"
            return (int(atom.val), int(atom.val)) if exact else None

        for eqn in jaxpr.eqns:
            results = self._results(eqn, [read(atom) for atom in eqn.invars])
            for var, result in zip(eqn.outvars, results, strict=True):
                known[var] = self._held(eqn, var.aval, result)
        return [read(atom) for atom in jaxpr.outvars]

    def _held(self, eqn: Any, aval: Any, result: Range) -> Range:
        """Return the range that a dtype holds, and keep it if the dtype is narrow."""
        dtype = getattr(aval, "dtype", None)
        if result is None or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
            return result if isinstance(dtype, np.dtype) and dtype.kind == "b" else None
        info = np.iinfo(dtype)
        fits = info.min <= result[0] and result[1] <= info.max
        if dtype.itemsize <= _NARROW:
            value = NarrowValue(dtype.name, result, source_line(eqn) or "")
            self._values.append(value)
        return result if fits else None

    def _results(self, eqn: Any, operands: Sequence[Range]) -> Sequence[Range]:
        name, params = eqn.primitive.name, eqn.params
        called = called_jaxpr(eqn)
        if called is not None:
            return self.outputs(called[0], operands)
        if name == "cond":
            branches = [
                self.outputs(open_jaxpr(branch)[0], operands[1:]) for branch in params["branches"]
            ]
            return [_union(results) for results in zip(*branches, strict=True)]
        if name == "scan":
            return self._scanned(eqn, operands)
        if name == "while":
            return self._repeated(eqn, operands)
        unknown = [None] * len(eqn.outvars)
        if len(eqn.outvars) != 1:
            return unknown
        if name == "program_id":
            size = self._size(params["axis"])
            return unknown if size is None else [(0, max(size - 1, 0))]
        if name == "num_programs":
            size = self._size(params["axis"])
            return unknown if size is None else [(size, size)]
        if name == "iota":
            return [(0, max(params["shape"][params["dimension"]] - 1, 0))]
        if name == "select_n":
            return [_union(operands[1:])]
        if None in operands or not operands:
            return [_masked(operands)] if name == "and" else unknown
        ranges = [operand for operand in operands if operand is not None]
        return [_OPERATIONS[name](*ranges)] if name in _OPERATIONS else unknown

    def _size(self, axis: int) -> int | None:
        return self._grid[axis] if axis < len(self._grid) else None

    def _scanned(self, eqn: Any, operands: Sequence[Range]) -> list[Range]:
        """Return the ranges after a loop of known length, whose counters have one in it."""
        body, _ = open_jaxpr(eqn.params["jaxpr"])
        consts, carried, _ = scan_parts(eqn.params, len(operands))
        steps = max(eqn.params["length"] - 1, 0)
        inputs: list[Range] = [*operands[:consts], *[None] * (len(operands) - consts)]
        for position in range(consts, consts + carried):
            start = operands[position]
            step = _step(body, position, position - consts)
            if start is not None and step is not None:
                ends = (start[0] + step * steps, start[1] + step * steps)
                inputs[position] = _union([start, ends])
        self.outputs(body, inputs)
        return [None] * len(eqn.outvars)

    def _repeated(self, eqn: Any, operands: Sequence[Range]) -> list[Range]:
        """Return the ranges after a ``while``: of a counter up to a bound, in the loop."""
        condition, _ = open_jaxpr(eqn.params["cond_jaxpr"])
        body, _ = open_jaxpr(eqn.params["body_jaxpr"])
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = list(operands[first + second :])
        inside: list[Range] = [None] * len(carried)
        for number, start in enumerate(carried):
            if start is None or _step(body, second + number, number) != 1:
                continue
            for test in condition.eqns:
                left, right = test.invars if test.primitive.name == "lt" else (None, None)
                if left is condition.invars[first + number]:
                    bound = self._bound(condition, right, [*operands[:first], *carried])
                    if bound is not None:
                        inside[number] = (start[0], max(bound - 1, start[0]))
        for number, out in enumerate(body.outvars):
            if out is body.invars[second + number]:
                inside[number] = carried[number]  # what no iteration changes
        self.outputs(body, [*operands[first : first + second], *inside])
        return [None] * len(eqn.outvars)

    def _bound(self, condition: Any, atom: Any, operands: Sequence[Range]) -> int | None:
        if is_literal(atom):
            return int(atom.val)
        known = dict(zip(condition.invars, operands, strict=True)).get(atom)
        return None if known is None else known[1]


def _step(body: Any, position: int, output: int) -> int | None:
    """Return what an iteration adds to a carried value; None if that is not a constant."""
    before, after = body.invars[position], body.outvars[output]
    for eqn in body.eqns:
        if eqn.primitive.name != "add" or eqn.outvars[0] is not after:
            continue
        added = eqn.invars[1]
        if eqn.invars[0] is before and is_literal(added) and np.ndim(added.val) == 0:
            return int(added.val)
    return None


def _union(ranges: Sequence[Range]) -> Range:
    known = [one for one in ranges if one is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _masked(operands: Sequence[Range]) -> Range:
    """Return the range of the bits that a mask leaves of anything."""
    masks = [one[1] for one in operands if one is not None and one[0] == one[1] >= 0]
    return (0, min(masks)) if masks else None


def _corners(function: Callable[[int, int], int]) -> Callable[..., Range]:
    """Make the operation on ranges of one that is monotone in each operand."""

    def apply(one: tuple[int, int], other: tuple[int, int]) -> Range:
        corners = [function(x, y) for x in one for y in other]
        return min(corners), max(corners)

    return apply


def _kept(one: tuple[int, int], *_: Any) -> Range:
    return one


def _clamped(low: tuple[int, int], one: tuple[int, int], high: tuple[int, int]) -> Range:
    ends = (min(max(x, least), most) for x, least, most in zip(one, low, high, strict=True))
    return next(ends), next(ends)


def _quotient(one: tuple[int, int], other: tuple[int, int]) -> Range:
    if other[0] <= 0 <= other[1]:
        return None
    return _corners(lambda x, y: int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1))(
        one, other
    )


def _remainder(one: tuple[int, int], other: tuple[int, int]) -> Range:
    most = max(abs(other[0]), abs(other[1])) - 1
    if most < 0 or other[0] <= 0 <= other[1]:
        return None
    return max(min(one[0], 0), -most), min(max(one[1], 0), most)


def _anded(one: tuple[int, int], other: tuple[int, int]) -> Range:
    return (0, min(one[1], other[1])) if min(one[0], other[0]) >= 0 else _masked([one, other])


def _shifted(one: tuple[int, int], other: tuple[int, int]) -> Range:
    return _corners(lambda x, y: x >> y)(one, other) if 0 <= other[0] <= other[1] < 64 else None


def _shifted_left(one: tuple[int, int], other: tuple[int, int]) -> Range:
    return _corners(lambda x, y: x << y)(one, other) if 0 <= other[0] <= other[1] < 64 else None


_OPERATIONS: Mapping[str, Callable[..., Range]] = {
    **dict.fromkeys(
        (
            *("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "multiple_of"),
            *("reduce_max", "reduce_min", "reshape", "rev", "slice", "squeeze", "stop_gradient"),
            "transpose",
        ),
        _kept,
    ),
    "add": _corners(lambda x, y: x + y),
    "and": _anded,
    "clamp": _clamped,
    "div": _quotient,
    "max": _corners(max),
    "min": _corners(min),
    "mul": _corners(lambda x, y: x * y),
    "neg": lambda one: (-one[1], -one[0]),
    "rem": _remainder,
    "shift_left": _shifted_left,
    "shift_right_arithmetic": _shifted,
    "shift_right_logical": lambda one, by: _shifted(one, by) if one[0] >= 0 else None,
    "sub": _corners(lambda x, y: x - y),
}
