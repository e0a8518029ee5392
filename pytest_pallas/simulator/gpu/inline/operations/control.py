"""Branches and loops, in which threads may go different ways: the dialect ``scf``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.gpu.inline.code import InlineOperation, InlineRegion
from pytest_pallas.simulator.gpu.inline.frame import InlineFrame, operation, signed
from pytest_pallas.simulator.gpu.inline.operations.arithmetic import chosen

Array = np.ndarray[Any, Any]


def _results(op: InlineOperation, values: list[Any]) -> Any:
    return values[0] if len(op.results) == 1 else values


def _inside(
    frame: InlineFrame, active: Array, region: InlineRegion, arguments: Any = ()
) -> list[Any]:
    """Run a region on some threads."""
    before, frame.active = frame.active, active
    try:
        return frame.evaluate(region, arguments)
    finally:
        frame.active = before


def _now(frame: InlineFrame) -> Array:
    return np.ones(frame.threads, np.bool_) if frame.active is None else frame.active


@operation("scf.if")
def _if(frame: InlineFrame, op: InlineOperation, where: Array) -> Any:
    now, where = _now(frame), frame.all(where)
    then, other = now & where, now & ~where
    branch, *rest = op.regions
    if not other.any():
        return _results(op, frame.evaluate(branch))
    otherwise = rest[0] if rest else InlineRegion((), ())
    if not then.any():
        return _results(op, frame.evaluate(otherwise))
    first = _inside(frame, then, branch)
    second = _inside(frame, other, otherwise)
    return _results(op, [chosen(where, a, b) for a, b in zip(first, second, strict=True)])


@operation("scf.for")
def _for(
    frame: InlineFrame, op: InlineOperation, low: Array, high: Array, step: Array, *carry: Any
) -> Any:
    at, (region,) = low, op.regions
    values = list(carry)
    now = _now(frame)
    while True:
        going = now & frame.all(signed(at) < signed(high))
        if not going.any():
            return _results(op, values)
        if (going == now).all():
            values = frame.evaluate(region, (at, *values))
        else:
            new = _inside(frame, going, region, (at, *values))
            values = [chosen(going, a, b) for a, b in zip(new, values, strict=True)]
        at = at + step


@operation("scf.while")
def _while(frame: InlineFrame, op: InlineOperation, *carry: Any) -> Any:
    condition, body = op.regions
    values, now = list(carry), _now(frame)
    given: list[Any] = []
    going = now
    while True:
        where, *passed = _inside(frame, going, condition, values)
        given = (
            passed
            if not given
            else [chosen(going, a, b) for a, b in zip(passed, given, strict=True)]
        )
        going = going & frame.all(where)
        if not going.any():
            return _results(op, given)
        new = _inside(frame, going, body, given)
        values = [chosen(going, a, b) for a, b in zip(new, values, strict=True)]
        frame.step()


@operation("scf.index_switch")
def _switch(frame: InlineFrame, op: InlineOperation, number: Array) -> Any:
    """Regions are the default and then the cases."""
    cases = tuple(op.attributes["cases"])
    values: list[Any] = []
    now, number = _now(frame), frame.all(number)
    left = now.copy()
    for place, region in enumerate((*op.regions[1:], op.regions[0])):
        here = left & (number == cases[place]) if place < len(cases) else left
        left = left & ~here
        if here.any():
            found = _inside(frame, here, region)
            values = (
                found
                if not values
                else [chosen(here, a, b) for a, b in zip(found, values, strict=True)]
            )
    return _results(op, values)
