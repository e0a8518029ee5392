"""The values of scalars: in a kernel at many grid points at once, and around it.

A scalar is an array with one number a grid point. The results are those of XLA: integers wrap
around, and division rounds towards zero. ``jax.vmap`` vectorizes an index map with an operation
that is not in the table, and the simulator evaluates it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    called_by,
    discharged,
    equations_inside,
    is_indexer,
    note_callers,
    open_jaxpr,
    sub_jaxprs,
)
from pytest_pallas.grid.kernel_calls import (
    KernelCall,
    kernel_call,
    variables,
)

Points = np.ndarray[Any, Any]


class UnknownValueError(Exception):
    """A value depends on what is not known without running a kernel."""


@dataclass(frozen=True)
class RefAccess:
    """A load from a ref, or a store to it.

    Attributes:
      window: the index of each axis: a number or an operand for a single one, or an object with
        ``start``, ``size`` and ``stride``. Empty for the whole ref; None if it cannot be followed,
        because the ref is reshaped or indexed twice.
      stored: the operand that is stored; None for a load.
      masked: whether a mask says which elements.
    """

    window: list[Any] | None
    stored: Any = None
    masked: bool = False


def access_of(eqn: Any) -> RefAccess:
    """Read how an equation accesses its ref, also by ``addupdate`` and the masked forms."""
    name = eqn.primitive.name
    if name in ("masked_load", "masked_swap"):
        parts: Any = eqn.params["args_tree"].unflatten(eqn.invars)
        stored, mask = parts[2:4] if name == "masked_swap" else (None, parts[2])
        return RefAccess(_indices(parts[1]), stored, mask is not None)
    stored = None if name == "get" else eqn.invars[1]
    transforms: Any = eqn.params["tree"].unflatten(eqn.invars[1 if stored is None else 2 :])
    transforms = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    return RefAccess(_indices(transforms), stored)


def _indices(transforms: Sequence[Any]) -> list[Any] | None:
    if not transforms:
        return []
    if len(transforms) != 1 or not is_indexer(transforms[0]):
        return None
    return list(transforms[0].indices)


def _divided(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a) // np.abs(np.where(b == 0, 1, b))
    return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)


def _remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, np.where(b == 0, 1, b)).astype(a.dtype)


#: Operations on numbers by the name of their primitive, with the rounding and wrapping of XLA.
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": lambda x: x,
    "div": _divided,
    "eq": np.equal,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "multiple_of": lambda x: x,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "rem": _remainder,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "sign": np.sign,
    "square": np.square,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}


def applied(eqn: Any, operands: Sequence[Points | None]) -> Points | None:
    """Compute an operation on scalars; None for another operation, or an unknown operand.

    Args:
      eqn: an equation with one result.
      operands: an array[points] for each; None for one that is not known.
    """
    result = eqn.outvars[0].aval
    if getattr(result, "shape", None) != () or any(x is None for x in operands):
        return None
    name, dtype = eqn.primitive.name, result.dtype
    with np.errstate(all="ignore"):
        if name == "select_n":
            which, *cases = operands
            assert which is not None
            return np.choose(which.astype(int), [np.asarray(case) for case in cases])
        if name in ("broadcast_in_dim", "reshape", "squeeze") and len(operands) == 1:
            return operands[0]
        if name == "convert_element_type":
            return np.asarray(operands[0]).astype(dtype)
        if name == "integer_pow":
            return np.power(np.asarray(operands[0]), eqn.params["y"]).astype(dtype)
        if name in OPERATIONS:
            return np.asarray(OPERATIONS[name](*operands)).astype(dtype)
    return None


def coordinate(eqn: Any, points: Points, vmapped: Sequence[int]) -> Points:
    """Evaluate ``program_id`` for the axis that the body means: int32[points].

    Args:
      eqn: the equation.
      points: int32[dims, points].
      vmapped: dims of the grid that the body does not count.
    """
    counted = [dim for dim in range(len(points)) if dim not in vmapped]
    return points[counted[eqn.params["axis"]]]


def indexed(
    values: Points, indices: Sequence[Any], read: Callable[[Any], Points | None]
) -> Points | None:
    """Evaluate ``ref[i, j]`` of a ref with known values at every grid point; None if no scalar.

    Indices beyond the end are clipped, as by the portable interpreter.
    """
    if len(indices) != values.ndim:
        return None
    clipped: list[Points] = []
    for index, size in zip(indices, values.shape, strict=True):
        if hasattr(index, "start"):
            return None
        at = np.asarray(index) if isinstance(index, (int, np.integer)) else read(index)
        if at is None or not size:
            return None
        clipped.append(np.clip(at, 0, size - 1))
    return np.broadcast_arrays(values[tuple(clipped)], *clipped)[0] if clipped else values


def mapped(
    index_map: Any, points: Points, scalars: Sequence[Points | None], vmapped: Sequence[int]
) -> list[Points] | None:
    """Evaluate an index map at every grid point; None where it reads unknown scalars.

    Args:
      index_map: its jaxpr.
      points: int32[dims, points].
      scalars: values of the prefetched operands; None where they are not known.
      vmapped: see ``coordinate``.

    Returns:
      For each output of the map an int32[points].
    """
    jaxpr, consts = open_jaxpr(index_map)
    inputs: list[Any] = [*points, *scalars]
    try:
        outputs = _evaluated(jaxpr, consts, inputs, len(points), points, vmapped)
    except UnknownValueError:
        return None
    count = points.shape[1]
    if any(x is None for x in outputs):  # an operation that is not in the table
        used = {var for eqn in jaxpr.eqns for var in variables(eqn)}
        pairs = list(zip(jaxpr.invars[len(points) :], scalars, strict=True))
        if any(value is None and var in used for var, value in pairs):
            return None
        stand_ins = [
            np.zeros(var.aval.shape, var.aval.dtype) if value is None else value
            for var, value in pairs
        ]
        from pallas_sim import Machine, evaluate

        try:
            batched = _batched(index_map, points, stand_ins)
            outputs = evaluate(batched, Machine(), [*points, *stand_ins])[: len(outputs)]
        except Exception:  # whatever JAX rejects; the map is then not known
            return None
    return [np.broadcast_to(np.asarray(x), (count,)) for x in outputs]


def _evaluated(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    refs_from: int,
    points: Points,
    vmapped: Sequence[int],
) -> list[Points | None]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=False))
    known.update(zip(jaxpr.invars[:refs_from], inputs[:refs_from], strict=True))
    refs = dict(zip(jaxpr.invars[refs_from:], inputs[refs_from:], strict=True))

    def read(var: Any) -> Any:
        return np.asarray(var.val, var.aval.dtype) if hasattr(var, "val") else known.get(var)

    for eqn in jaxpr.eqns:
        if len(eqn.outvars) != 1 and called_by(eqn) is None:
            continue
        name = eqn.primitive.name
        if name == "program_id":
            known[eqn.outvars[0]] = coordinate(eqn, points, vmapped)
        elif name == "get" and eqn.invars[0] in refs:
            if refs[eqn.invars[0]] is None:
                raise UnknownValueError
            window = access_of(eqn).window
            values = np.asarray(refs[eqn.invars[0]])
            known[eqn.outvars[0]] = None if window is None else indexed(values, window, read)
        elif (called := called_by(eqn)) is not None and not refs.keys() & variables(eqn):
            operands = [read(var) for var in eqn.invars]
            results = _evaluated(*called, operands, len(operands), points, vmapped)
            known.update(zip(eqn.outvars, results, strict=True))
        elif called is None:
            known[eqn.outvars[0]] = applied(eqn, [read(var) for var in eqn.invars])
    return [read(var) for var in jaxpr.outvars]


def _batched(index_map: Any, points: Points, scalars: Sequence[Any]) -> Any:
    """Vectorize an index map: a closed jaxpr of ``points`` and ``scalars``.

    Its first outputs are those of the map, an array[points] each. The scalars follow, which are
    refs in the map.

    Args:
      index_map: its jaxpr.
      points: int32[dims, points], with one dim at least.
      scalars: values of the scalar operands.
    """
    import jax
    from jax.extend.core import jaxpr_as_fun

    pure = jaxpr_as_fun(discharged(index_map))
    axes = (*(0,) * len(points), *(None,) * len(scalars))
    return jax.make_jaxpr(jax.vmap(pure, axes))(*points, *scalars)


# The jaxprs around a kernel: the values of its operands, and the use of its outputs.


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
