"""The jaxprs around a kernel: what its operands are, and what becomes of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.traces import KERNEL_PRIMITIVES, sub_jaxprs
from pytest_pallas.grid.kernel_calls import KernelCall, called_jaxpr, kernel_call

#: What hands on only some of its operand's elements, or may: nothing is known behind it.
_CHOOSING = frozenset(
    {
        *("cond", "dynamic_slice", "dynamic_update_slice", "gather", "scan", "scatter", "select_n"),
        *("scatter-add", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "slice"),
        *("split", "while"),
    }
)

#: Work that is not done for the value of a scalar operand, in elements of an array.
_MOST_ELEMENTS = 2**24


class UnknownValueError(Exception):
    """A value depends on what is not known without running a kernel."""


@dataclass(eq=False)
class JaxprScope:
    """A jaxpr inside a traced function, with what is known of its variables.

    Attributes:
      jaxpr: an open jaxpr.
      given: what gives the value of an input or constant; nothing for one that is not known.
      parent: the scope and equation that call it; None for the function itself.
      children: the scopes of jaxprs that equations here call, by the equation's id.
    """

    jaxpr: Any
    given: dict[Any, Callable[[], Any]]
    parent: tuple[JaxprScope, Any] | None = None
    children: dict[int, list[JaxprScope]] = field(default_factory=dict[int, "list[JaxprScope]"])
    _found: dict[Any, Any] = field(default_factory=dict[Any, Any])
    _makers: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self._makers = {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}

    def value(self, var: Any) -> Any:
        """The value of a variable, computed from as little as possible, and kept.

        Raises:
          UnknownValueError: it depends on something that is not known.
        """
        if hasattr(var, "val"):
            return var.val
        if var not in self._found:
            self._found[var] = self._value(var)
        if isinstance(self._found[var], UnknownValueError):
            raise self._found[var]
        return self._found[var]

    def _value(self, var: Any) -> Any:
        try:
            if var in self.given:
                return self.given[var]()
            if var not in self._makers:
                return UnknownValueError()
            return self._made(var, self._makers[var])
        except UnknownValueError as error:
            return error
        except Exception:  # tracing errors, collectives without their axis, recursion: unknown
            return UnknownValueError()

    def _made(self, var: Any, eqn: Any) -> Any:
        called = self.children.get(id(eqn), [])
        if called_jaxpr(eqn) is not None and len(called) == 1:
            position = eqn.outvars.index(var)
            return called[0].value(called[0].jaxpr.outvars[position])
        if eqn.effects or _runs_kernel(eqn):
            return UnknownValueError()
        if any(math.prod(getattr(v.aval, "shape", ())) > _MOST_ELEMENTS for v in eqn.invars):
            return UnknownValueError()
        from pallas_sim import evaluate_equation

        results = evaluate_equation(eqn, [self.value(operand) for operand in eqn.invars])
        self._found.update(zip(eqn.outvars, results, strict=True))
        return self._found[var]


def _runs_kernel(eqn: Any) -> bool:
    return eqn.primitive.name in KERNEL_PRIMITIVES or any(
        _runs_kernel(each) for inner in sub_jaxprs(eqn) for each in inner.eqns
    )


def scopes_of(closed: Any, arrays: Sequence[Any]) -> JaxprScope:
    """The scope of a traced function and, inside it, all others.

    Args:
      closed: its closed jaxpr.
      arrays: its inputs; a ``jax.ShapeDtypeStruct`` where only the shape is known.
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    scope = JaxprScope(jaxpr, _given(jaxpr.constvars, getattr(closed, "consts", ())))
    scope.given.update(_given(jaxpr.invars, arrays))
    _fill(scope)
    return scope


def _given(variables: Sequence[Any], arrays: Sequence[Any]) -> dict[Any, Callable[[], Any]]:
    return {
        var: _converter(array, var.aval)
        for var, array in zip(variables, arrays, strict=False)
        if hasattr(array, "__array__")
    }


def _converter(array: Any, aval: Any) -> Callable[[], Any]:
    def convert() -> Any:
        import jax.numpy as jnp

        return jnp.asarray(array, dtype=aval.dtype)

    return convert


def _fill(scope: JaxprScope) -> None:
    """Make the scopes inside one."""
    for eqn in scope.jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            continue
        inside: list[JaxprScope] = []
        for inner, consts in _inner(eqn):
            child = JaxprScope(inner, _given(inner.constvars, consts), parent=(scope, eqn))
            for var, operand in _entries(eqn, inner):
                child.given[var] = _entry(scope, operand, eqn.primitive.name, var.aval)
            _fill(child)
            inside.append(child)
        if inside:
            scope.children[id(eqn)] = inside


def _inner(eqn: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    called = called_jaxpr(eqn)
    if called is not None:
        yield called
    else:
        for jaxpr in sub_jaxprs(eqn):
            yield jaxpr, getattr(jaxpr, "consts", ())


def _entries(eqn: Any, inner: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs of an inner jaxpr with the operands that they are, at the first time it runs."""
    name, operands = eqn.primitive.name, list(eqn.invars)
    if called_jaxpr(eqn) is not None or name in ("shard_map", "scan"):
        pass
    elif name == "cond":
        operands = operands[1:]
    elif name == "while":
        # Whether the body runs at all depends on the carry; what it does not change is safe.
        skip, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        if inner is not getattr(eqn.params["body_jaxpr"], "jaxpr", eqn.params["body_jaxpr"]):
            return
        yield from zip(inner.invars[:consts], operands[skip:][:consts], strict=True)
        return
    else:
        return
    if len(inner.invars) == len(operands):
        yield from zip(inner.invars, operands, strict=True)


def _entry(scope: JaxprScope, operand: Any, primitive: str, aval: Any) -> Callable[[], Any]:
    """The value of an operand as it enters: a loop's first slice, the first device's shard."""

    def value() -> Any:
        found = scope.value(operand)
        shape = getattr(aval, "shape", ())
        if primitive == "scan" and np.ndim(found) == len(shape) + 1:
            return found[0]
        if primitive == "shard_map" and np.shape(found) != shape:
            return found[tuple(map(slice, shape))]
        return found

    return value


def located(
    scope: JaxprScope, path: tuple[str, ...] = ()
) -> Iterator[tuple[KernelCall, JaxprScope]]:
    """All kernels inside a scope with the scope of each, in order."""
    for eqn in scope.jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            yield kernel_call(eqn, path), scope
        for child in scope.children.get(id(eqn), ()):
            yield from located(child, (*path, eqn.primitive.name))


@dataclass(frozen=True)
class OutputUse:
    """What becomes of an output.

    Attributes:
      returned: regions of it, as start and end along each axis, that the function returns, or
        what is computed of them.
      doubtful: whether some of it goes where only a part may be used.
    """

    returned: tuple[tuple[tuple[int, int], ...], ...]
    doubtful: bool

    @property
    def none(self) -> bool:
        """Whether nothing uses it: some kernels have outputs for scratch."""
        return not self.returned and not self.doubtful


def use_of(scope: JaxprScope, var: Any) -> OutputUse:
    """What becomes of a kernel's output."""
    whole = tuple((0, int(n)) for n in var.aval.shape)
    regions: list[tuple[tuple[int, int], ...]] = []
    doubts: list[bool] = []
    _follow(scope, var, whole, True, regions, doubts)
    return OutputUse(tuple(dict.fromkeys(regions)), any(doubts))


def _follow(
    scope: JaxprScope,
    var: Any,
    region: tuple[tuple[int, int], ...],
    intact: bool,
    regions: list[tuple[tuple[int, int], ...]],
    doubts: list[bool],
    seen: set[tuple[int, int]] | None = None,
) -> None:
    """Follow a value to where it is returned. ``intact``: its axes are those of the output."""
    seen = set() if seen is None else seen
    if (id(scope), id(var)) in seen:
        return
    seen.add((id(scope), id(var)))
    for eqn in scope.jaxpr.eqns:
        if not any(operand is var for operand in eqn.invars):
            continue
        name = eqn.primitive.name
        children = scope.children.get(id(eqn), [])
        if name == "slice" and intact and len(eqn.outvars) == 1:
            limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
            part = tuple(
                (low + start, low + end)
                for (low, _), (start, end) in zip(region, limits, strict=True)
            )
            strides = eqn.params["strides"]
            if strides is None or all(s == 1 for s in strides):
                _follow(scope, eqn.outvars[0], part, True, regions, doubts, seen)
            else:
                doubts.append(True)
        elif name in _CHOOSING or name in KERNEL_PRIMITIVES:
            doubts.append(True)
        elif children:
            for child in children:
                inner = dict(_entries(eqn, child.jaxpr))
                for entered, operand in inner.items():
                    if operand is var:
                        same = intact and entered.aval.shape == var.aval.shape
                        _follow(child, entered, region, same, regions, doubts, seen)
        else:
            same = intact and all(out.aval.shape == var.aval.shape for out in eqn.outvars)
            for out in eqn.outvars:
                _follow(scope, out, region, same and _elementwise(name), regions, doubts, seen)
    for position, out in enumerate(scope.jaxpr.outvars):
        if out is not var:
            continue
        if scope.parent is None:
            regions.append(region)
        else:
            outer, eqn = scope.parent
            if position < len(eqn.outvars):
                target = eqn.outvars[position]
                same = intact and target.aval.shape == var.aval.shape
                _follow(outer, target, region, same, regions, doubts, seen)


def _elementwise(name: str) -> bool:
    return name not in ("rev", "transpose", "sort", "cumsum", "cumprod", "cummax", "cummin")
