"""A traced function with a rounding error after every operation: Monte Carlo arithmetic.

Every float that an operation returns is changed by a small random amount, as rounding it would;
evaluated several times, the results show what rounding does to this function at these inputs. The
method is that of Parker, "Monte Carlo arithmetic: exploiting randomness in floating-point
arithmetic", UCLA CSD-970002, 1997, of which this is the random rounding of outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pytest_pallas import compat

#: Operations through which a matrix product is still one: each element is one of the operand.
_MOVES = frozenset(
    {
        *("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "neg", "reshape"),
        *("rev", "slice", "squeeze", "transpose"),
    }
)

#: Operations that move, choose or compare numbers, and round nothing.
_EXACT = _MOVES | {
    *("abs", "argsort", "clamp", "concatenate", "dynamic_slice", "dynamic_update_slice"),
    *("gather", "max", "min", "pad", "reduce_max", "reduce_min", "select_n", "sign", "sort"),
    *("split", "stop_gradient"),
}

_SUMS = frozenset({"dot_general", "reduce_sum", "cumsum"})

#: Functions that are approximated, which no standard requires to be rounded correctly.
_APPROXIMATED = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh"),
        *("digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma"),
        *("log", "log1p", "logistic", "pow", "rsqrt", "sin", "sinh", "tan", "tanh"),
    }
)

#: Their error in roundings: up to 2 units in the last place, evenly. That is the bound of most in
#: float32 in the CUDA C++ Programming Guide ("Mathematical Functions"), and of XLA's for CPUs it
#: was 0.2 (sin) to 3 (atan, erf), measured.
_APPROXIMATION = 4.0

#: Equal terms of a sum are rounded alike, all up or all down: added one by one, n of them give an
#: error of n / 16 ulps in the root mean square over all values, measured. Here in roundings, of
#: 0.21 ulps each.
_REPEATED = 0.29


@dataclass(frozen=True)
class Rounding:
    """Root mean square of one rounding, relative to the number; traced scalars or floats.

    Attributes:
      narrow: of the dtype that arrays are kept in.
      wide: of the dtype that is computed in.
      error: random numbers of mean 0 and mean square 1, others at each call: float64[shape].
    """

    narrow: Any
    wide: Any
    error: Callable[[Sequence[int]], Any]


@dataclass(frozen=True)
class _Value:
    """What a variable holds.

    Attributes:
      array: its value.
      given: whether it is an input of the function, or a rearrangement of some: not rounded yet.
      terms: of a matrix product, the root of the sum of squares of its terms; else None.
      again: of a matrix product that has been used already, how far another one may be that is
        equal but for rounding; else None.
    """

    array: Any
    given: bool = False
    terms: Any = None
    again: Any = None


def rounded(closed: Any, arrays: Sequence[Any], rounding: Rounding) -> list[Any]:
    """The outputs of a closed jaxpr, with rounding errors on the way.

    - Every operation's result is rounded in the wide dtype. Functions such as ``exp`` have four
      roundings, and one of each argument: 2^x is commonly e^(x log 2), whose product is rounded.
      The error of a sum of n terms is
      relative to the sum of their magnitudes and ``sqrt(n)`` times as large, whatever the order
      (Higham and Mary, 2019; see ``numerics.summation_error``), or, if m neighbouring terms are
      equal, ``m / 16`` times as large.
    - Every term of a sum, and every operand of a matrix product, is rounded in the narrow dtype,
      unless it is an input as it came. So is each use of a matrix product in arithmetic, relative
      to its terms: the kernel may have got it from operands that were rounded, or from another
      product (in the gradient of attention ``sum(p * dp)`` is ``sum(o * do)``, with a rounded
      output ``o``). For that reason uses after the first have the error of a sum of their own.

    Functions that are called are entered; loops and branches count as one operation.

    Args:
      closed: as ``jax.make_jaxpr`` returns it, of a function on float64.
      arrays: one for each of its inputs.
      rounding: how large the errors are.
    """
    inputs = [_Value(array, given=True) for array in arrays]
    return [value.array for value in _evaluate(closed.jaxpr, closed.consts, inputs, rounding)]


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[_Value], rounding: Rounding
) -> list[_Value]:
    values: dict[Any, _Value] = {}
    used: set[Any] = set()

    def read(var: Any) -> _Value:
        if hasattr(var, "val"):  # a literal
            return _Value(jnp.asarray(var.val, var.aval.dtype), given=True)
        if var in used:
            return values[var]
        used.add(var)
        return dataclasses.replace(values[var], again=None)

    for var, const in zip(jaxpr.constvars, consts, strict=True):
        values[var] = _Value(const, given=True)
    values.update(zip(jaxpr.invars, inputs, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        called = compat.called_jaxpr(eqn)
        if called is not None:
            results = _evaluate(called[0], called[1], operands, rounding)
        else:
            results = _apply(eqn, operands, rounding)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _apply(eqn: Any, operands: Sequence[_Value], rounding: Rounding) -> list[_Value]:
    """One operation."""
    name = eqn.primitive.name
    if name in _MOVES and operands[0].terms is not None:
        product = operands[0]
        (moved,), (terms,) = _bind(eqn, [product.array]), _bind(eqn, [product.terms])
        again = None if product.again is None else jnp.abs(_bind(eqn, [product.again])[0])
        return [_Value(moved, terms=jnp.abs(terms), again=again)]
    arrays = [_used(operand, name, rounding) for operand in operands]
    if name in _APPROXIMATED:
        return [
            _Value(_off(result, _APPROXIMATION * rounding.wide, rounding))
            for result in _bind(eqn, [_off(array, rounding.wide, rounding) for array in arrays])
        ]
    results = _bind(eqn, arrays)
    if name in _SUMS:
        return [_summed(eqn, arrays, results[0], rounding)]
    floats = [operand for operand in operands if _is_inexact(operand.array)]
    given = name in _EXACT and all(operand.given for operand in floats)
    return [
        _Value(result, given=given or not _is_inexact(result))
        if name in _EXACT or not _is_inexact(result)
        else _Value(_off(result, rounding.wide, rounding))
        for result in results
    ]


def _used(operand: _Value, name: str, rounding: Rounding) -> Any:
    """An operand as the operation ``name`` may have it."""
    array = operand.array
    if operand.given or name in _EXACT or not _is_inexact(array):
        return array
    if operand.terms is not None:
        if operand.again is not None:
            array += operand.again * rounding.error(array.shape)
        return array + rounding.narrow * operand.terms * rounding.error(array.shape)
    return _off(array, rounding.narrow, rounding) if name in _SUMS else array


def _off(array: Any, size: Any, rounding: Rounding) -> Any:
    """A float with a relative error of ``size``, each element its own."""
    return array * (1 + size * rounding.error(array.shape)) if _is_inexact(array) else array


def _summed(eqn: Any, arrays: Sequence[Any], result: Any, rounding: Rounding) -> _Value:
    """A sum with the error of its order."""
    if not _is_inexact(result):
        return _Value(result, given=True)
    axes = [_summed_axes(eqn, position) for position in range(len(arrays))]
    count = math.prod(arrays[0].shape[axis] for axis in axes[0])
    (magnitude,) = _bind(eqn, [jnp.abs(array) for array in arrays])
    repeats = _bind(eqn, [_repeated(array, a) for array, a in zip(arrays, axes, strict=True)])[0]
    growth = jnp.maximum(math.sqrt(count), _REPEATED * repeats)
    size = rounding.wide * growth * magnitude
    array = result + size * rounding.error(result.shape)
    if eqn.primitive.name != "dot_general":
        return _Value(array)
    (squares,) = _bind(eqn, [jnp.square(jnp.abs(array)) for array in arrays])
    return _Value(array, terms=jnp.sqrt(squares), again=size)


def _summed_axes(eqn: Any, position: int) -> tuple[int, ...]:
    """The axes of an operand that are summed over."""
    if eqn.primitive.name == "dot_general":
        return tuple(eqn.params["dimension_numbers"][0][position])
    return (eqn.params["axis"],) if eqn.primitive.name == "cumsum" else tuple(eqn.params["axes"])


def _repeated(array: Any, axes: Sequence[int]) -> Any:
    """1.0 where an element equals the next one along the last of ``axes`` and is not 0."""
    if not axes:
        return jnp.zeros(array.shape)
    rolled = jnp.roll(array, -1, axes[-1])
    return ((array == rolled) & (array != 0)).astype(jnp.float64)


def _bind(eqn: Any, arrays: Sequence[Any]) -> Any:
    """The results of an operation."""
    results = eqn.primitive.bind(*arrays, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _is_inexact(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)
