"""The jaxprs around a kernel: the values of its operands, and the use of its outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    called_by,
    equations_inside,
    note_callers,
    open_jaxpr,
    sub_jaxprs,
)
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_call

#: Primitives that may pass on only some elements of an operand: the use is not known behind them.
_CHOOSING = frozenset(
    {
        *("cond", "dynamic_slice", "dynamic_update_slice", "gather", "scan", "scatter", "select_n"),
        *("scatter-add", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "slice"),
        *("split", "while"),
    }
)

#: Primitives that keep the shape and move elements.
_REORDERING = frozenset({"rev", "transpose", "sort", "cumsum", "cumprod", "cummax", "cummin"})

#: Limit on the elements of an array that is computed for the value of a scalar operand.
_MOST_ELEMENTS = 2**24


class UnknownValueError(Exception):
    """A value depends on what is not known without running a kernel."""


@dataclass(eq=False)
class JaxprScope:
    """A jaxpr inside a traced function, with what is known of its variables.

    Attributes:
      jaxpr: an open jaxpr.
      inputs: functions that return the value of an input or constant, if it is known.
      parent: the scope and equation that call it; None for the function itself.
      children: the scopes of jaxprs that equations here call, by the equation's id.
    """

    jaxpr: Any
    inputs: dict[Any, Callable[[], Any]]
    parent: tuple[JaxprScope, Any] | None = None
    children: dict[int, list[JaxprScope]] = field(default_factory=dict[int, "list[JaxprScope]"])
    _values: dict[Any, Any] = field(default_factory=dict[Any, Any])
    _makers: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self._makers = {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}

    def value(self, var: Any) -> Any:
        """Compute the value of a variable from as little as possible, and keep it.

        Raises:
          UnknownValueError: it depends on something that is not known.
        """
        if hasattr(var, "val"):
            return var.val
        if var not in self._values:
            self._values[var] = self._value(var)
        if isinstance(self._values[var], UnknownValueError):
            raise self._values[var]
        return self._values[var]

    def _value(self, var: Any) -> Any:
        try:
            if var in self.inputs:
                return self.inputs[var]()
            if var not in self._makers:
                return UnknownValueError()
            return self._made(var, self._makers[var])
        except UnknownValueError as error:
            return error
        except Exception:  # tracing errors, collectives without their axis, recursion: unknown
            return UnknownValueError()

    def _made(self, var: Any, eqn: Any) -> Any:
        called = self.children.get(id(eqn), [])
        if called_by(eqn) is not None and len(called) == 1:
            position = eqn.outvars.index(var)
            return called[0].value(called[0].jaxpr.outvars[position])
        inside = {inner.primitive.name for inner in (eqn, *equations_inside(eqn))}
        if eqn.effects or inside & KERNEL_PRIMITIVES:
            return UnknownValueError()
        if any(math.prod(getattr(v.aval, "shape", ())) > _MOST_ELEMENTS for v in eqn.invars):
            return UnknownValueError()
        from pallas_sim import evaluate_equation

        results = evaluate_equation(eqn, [self.value(operand) for operand in eqn.invars])
        self._values.update(zip(eqn.outvars, results, strict=True))
        return self._values[var]


def scopes_of(closed: Any, arrays: Sequence[Any]) -> JaxprScope:
    """Make the scope of a traced function and, inside it, all others.

    Args:
      closed: its closed jaxpr.
      arrays: its inputs; a ``jax.ShapeDtypeStruct`` where only the shape is known.
    """
    jaxpr, consts = open_jaxpr(closed)
    scope = JaxprScope(jaxpr, _readers((*jaxpr.constvars, *jaxpr.invars), (*consts, *arrays)))
    _fill(scope)
    return scope


def _readers(variables: Sequence[Any], arrays: Sequence[Any]) -> dict[Any, Callable[[], Any]]:
    return {
        var: functools.partial(_converted, array, var.aval.dtype)
        for var, array in zip(variables, arrays, strict=False)
        if hasattr(array, "__array__")
    }


def _converted(array: Any, dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array, dtype=dtype)


def _fill(scope: JaxprScope) -> None:
    """Make the scopes inside one."""
    for eqn in scope.jaxpr.eqns:
        note_callers(eqn)
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            continue
        inside: list[JaxprScope] = []
        called = called_by(eqn)
        for inner, consts in [called] if called is not None else map(open_jaxpr, sub_jaxprs(eqn)):
            child = JaxprScope(inner, _readers(inner.constvars, consts), parent=(scope, eqn))
            for var, operand in _entries(eqn, inner):
                child.inputs[var] = functools.partial(
                    _entered, scope, operand, eqn.primitive.name, var.aval
                )
            _fill(child)
            inside.append(child)
        if inside:
            scope.children[id(eqn)] = inside


def _entries(eqn: Any, inner: Any) -> Iterator[tuple[Any, Any]]:
    """Yield inputs of an inner jaxpr with their operands of the first time that it runs."""
    name, operands = eqn.primitive.name, list(eqn.invars)
    if called_by(eqn) is not None or name in ("shard_map", "scan"):
        pass
    elif name == "cond":
        operands = operands[1:]
    elif name == "while":
        # The carry decides whether the body runs at all. The constants are safe.
        skip, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        if inner is not getattr(eqn.params["body_jaxpr"], "jaxpr", eqn.params["body_jaxpr"]):
            return
        yield from zip(inner.invars[:consts], operands[skip:][:consts], strict=True)
        return
    else:
        return
    if len(inner.invars) == len(operands):
        yield from zip(inner.invars, operands, strict=True)


def _entered(scope: JaxprScope, operand: Any, primitive: str, aval: Any) -> Any:
    """Return the value of an operand inside: a loop's first slice, the first device's shard."""
    value, shape = scope.value(operand), getattr(aval, "shape", ())
    if primitive == "scan" and np.ndim(value) == len(shape) + 1:
        return value[0]
    if primitive == "shard_map" and np.shape(value) != shape:
        return value[tuple(map(slice, shape))]
    return value


def located(
    scope: JaxprScope, path: tuple[str, ...] = ()
) -> Iterator[tuple[KernelCall, JaxprScope]]:
    """Yield all kernels inside a scope with the scope of each, in order."""
    for eqn in scope.jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            yield kernel_call(eqn, path), scope
        for child in scope.children.get(id(eqn), ()):
            yield from located(child, (*path, eqn.primitive.name))


#: A part of an output, as start and end along each axis.
type Region = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OutputUse:
    """How a function uses an output. Some kernels have outputs for scratch, which nothing uses.

    Attributes:
      returned: its regions that the function returns, or computes results of.
      doubtful: whether some of it goes to an operation that may use only a part.
    """

    returned: tuple[Region, ...]
    doubtful: bool


def use_of(scope: JaxprScope, var: Any) -> OutputUse:
    """Follow a kernel's output to where it is used."""
    whole = tuple((0, int(n)) for n in var.aval.shape)
    uses = list(_uses(scope, var, whole, True, set()))
    returned = dict.fromkeys(region for region in uses if region is not None)
    return OutputUse(tuple(returned), None in uses)


def _uses(
    scope: JaxprScope, var: Any, region: Region, intact: bool, seen: set[tuple[int, int]]
) -> Iterator[Region | None]:
    """Yield the regions of an output that are returned in the end; None if only a part may be.

    Args:
      scope: where the value is.
      var: the value.
      region: of the output that it is.
      intact: whether its axes are those of the output.
      seen: scopes and values that were followed.
    """
    if (id(scope), id(var)) in seen:
        return
    seen.add((id(scope), id(var)))
    for eqn in scope.jaxpr.eqns:
        if not any(operand is var for operand in eqn.invars):
            continue
        name, params = eqn.primitive.name, eqn.params
        children = scope.children.get(id(eqn), [])
        if name == "slice" and intact and set(params["strides"] or (1,)) == {1}:
            limits = zip(region, params["start_indices"], params["limit_indices"], strict=True)
            part = tuple((low + start, low + end) for (low, _), start, end in limits)
            yield from _uses(scope, eqn.outvars[0], part, True, seen)
        elif name in _CHOOSING or name in KERNEL_PRIMITIVES:
            yield None
        elif children:
            for child in children:
                for entered, operand in dict(_entries(eqn, child.jaxpr)).items():
                    if operand is var:
                        same = intact and entered.aval.shape == var.aval.shape
                        yield from _uses(child, entered, region, same, seen)
        else:
            same = intact and all(out.aval.shape == var.aval.shape for out in eqn.outvars)
            for out in eqn.outvars:
                yield from _uses(scope, out, region, same and name not in _REORDERING, seen)
    for position, out in enumerate(scope.jaxpr.outvars):
        if out is not var:
            continue
        if scope.parent is None:
            yield region
            continue
        outer, eqn = scope.parent
        if position < len(eqn.outvars):
            target = eqn.outvars[position]
            same = intact and target.aval.shape == var.aval.shape
            yield from _uses(outer, target, region, same, seen)
