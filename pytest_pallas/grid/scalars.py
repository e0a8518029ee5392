"""Evaluate scalars of a kernel at many grid points at once: of index maps, and of conditions.

A scalar is an array with one number a grid point. The results are those of XLA: integers wrap
around, and division rounds towards zero. ``jax.vmap`` vectorizes an index map with an operation
that is not in the table, and the simulator evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.traces import called_by, discharged, is_indexer, open_jaxpr
from pytest_pallas.grid.kernel_calls import variables

Points = np.ndarray[Any, Any]


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
    except _UnknownError:
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


class _UnknownError(Exception):
    """A scalar operand is read whose value is not known."""


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
                raise _UnknownError
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
