"""Programs: what JAX traced, prepared once for evaluation."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_pallas import compat
from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.fallback import fallback
from pytest_pallas.simulator.registry import Equation, find_rule
from pytest_pallas.simulator.values import from_jax

#: Results from this size on are freed after their last use.
_LARGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Step:
    """One equation, prepared.

    Attributes:
      evaluate: see ``registry.Evaluate``.
      threaded: whether it takes the thread.
      ins: slots of its operands.
      outs: slots of its results.
      several: whether it gives a sequence of results.
      dead: slots of large arrays that nobody reads afterwards.
      equation: what it was prepared from.
    """

    evaluate: Callable[..., Any]
    threaded: bool
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    several: bool
    dead: tuple[int, ...]
    equation: Equation


@dataclass(frozen=True, slots=True)
class Program:
    """A jaxpr whose rules are bound and whose variables are slots.

    Attributes:
      slots: initial values: constants and literals in place.
      inputs: slots of the inputs.
      steps: the equations, in order.
      outputs: slots of the results.
      largest: bytes of the largest result of an equation, and what makes it.
    """

    slots: list[Any]
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    largest: tuple[int, Equation | None]


_Cache = weakref.WeakKeyDictionary[Any, Program]

_PREPARED: _Cache = weakref.WeakKeyDictionary()
_LIFTED: _Cache = weakref.WeakKeyDictionary()


def prepare(jaxpr: Any) -> Program:
    """The program of an open or closed jaxpr, made once and kept as long as the jaxpr.

    Raises:
      MissingRuleError: an effectful primitive has no rule.
    """
    found = _PREPARED.get(jaxpr)
    if found is None:
        inner, consts = compat.open_jaxpr(jaxpr)
        found = _PREPARED[jaxpr] = _prepared(inner, consts)
    return found


def prepare_lifted(jaxpr: Any, around: str = "") -> Program:
    """As ``prepare``, with the constants of the jaxpr as its first inputs.

    That is how ``run_scoped`` passes what its body captures.

    Args:
      jaxpr: open or closed.
      around: ``file:line`` of the equation that it belongs to.
    """
    found = _LIFTED.get(jaxpr)
    if found is None:
        found = _LIFTED[jaxpr] = _prepared(compat.open_jaxpr(jaxpr)[0], None, around)
    return found


def _prepared(jaxpr: Any, consts: Sequence[Any] | None, around: str = "") -> Program:
    slots: list[Any] = []
    where: dict[Any, int] = {}

    def slot(var: Any, value: Any = None) -> int:
        slots.append(value)
        where[var] = len(slots) - 1
        return len(slots) - 1

    def read(atom: Any) -> int:
        if not compat.is_literal(atom):
            return where[atom]
        slots.append(from_jax(atom.val, atom.aval))
        return len(slots) - 1

    if consts is None:
        inputs = tuple(map(slot, (*jaxpr.constvars, *jaxpr.invars)))
    else:
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            slot(var, from_jax(value, var.aval))
        inputs = tuple(map(slot, jaxpr.invars))
    last = {
        atom: number
        for number, eqn in enumerate(jaxpr.eqns)
        for atom in eqn.invars
        if not compat.is_literal(atom)
    }
    kept = {atom for atom in jaxpr.outvars if not compat.is_literal(atom)}
    kept |= {*jaxpr.constvars, *jaxpr.invars}
    largest: tuple[int, Equation | None] = (0, None)
    steps: list[Step] = []
    for number, eqn in enumerate(jaxpr.eqns):
        step = prepare_equation(eqn, around)
        ins = tuple(map(read, eqn.invars))
        outs = tuple(map(slot, eqn.outvars))
        dead = tuple(
            {
                where[atom]
                for atom in eqn.invars
                if not compat.is_literal(atom)
                and last[atom] == number
                and atom not in kept
                and size_of(atom.aval) >= _LARGE
            }
        )
        size = max(map(size_of, step.equation.outs), default=0)
        if size > largest[0]:
            largest = (size, step.equation)
        steps.append(replace(step, ins=ins, outs=outs, dead=dead))
    return Program(slots, inputs, tuple(steps), tuple(map(read, jaxpr.outvars)), largest)


def prepare_equation(eqn: Any, around: str = "") -> Step:
    """One equation with its rule bound, and without slots.

    Args:
      eqn: of a jaxpr.
      around: ``file:line`` of the equation around it.

    Raises:
      SimulationError: it cannot be evaluated: an effectful primitive has no rule, for one.
    """
    equation = Equation(
        name=eqn.primitive.name,
        params=eqn.params,
        ins=tuple(atom.aval for atom in eqn.invars),
        outs=tuple(var.aval for var in eqn.outvars),
        origin=eqn,
        home=compat.home_of_primitive(eqn.primitive),
        around=around,
    )
    found = find_rule(equation.name, equation.home)
    try:
        evaluate = fallback(equation) if found is None else found.bind(equation)
    except SimulationError as error:
        if not error.line:  # of an equation inside, which JAX made
            error.at(equation.line, "")
        raise
    return Step(
        evaluate=evaluate,
        threaded=found is None or found.threaded,
        ins=(),
        outs=(),
        several=eqn.primitive.multiple_results,
        dead=(),
        equation=equation,
    )


def size_of(aval: Any) -> int:
    """Bytes of an array of this shape and dtype; 0 for what is no array."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not isinstance(dtype, np.dtype) or hasattr(aval, "inner_aval"):
        return 0
    if not all(isinstance(n, int) for n in shape):
        return 0
    return math.prod(shape) * dtype.itemsize
