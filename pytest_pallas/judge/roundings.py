"""A traced function with a rounding error after every operation: Monte Carlo arithmetic.

Every float that an operation returns is changed by a small random amount, as rounding it would;
evaluated several times, the results show what rounding does to this function at these inputs. The
method is that of Parker, "Monte Carlo arithmetic: exploiting randomness in floating-point
arithmetic", UCLA CSD-970002, 1997, and this is its random rounding of outputs. See ``rounded``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim import (
    Equation,
    deviation_of_function,
    evaluate_with,
    hashed_errors,
    tensor_core_product,
)
from pallas_sim.dtypes import epsilon, is_complex, is_float, is_inexact
from pytest_pallas.judge.arithmetic import ChipArithmetic, ProductSums, kept_precision
from pytest_pallas.judge.tolerance import ROUNDING, ProductPrecision

#: Operations through which a matrix product is still one: each element is one of the operand.
MOVES = frozenset(
    {
        *("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "neg", "reshape"),
        *("rev", "slice", "squeeze", "transpose"),
    }
)

#: Operations each of whose elements is one of some operand, such as a masked matrix product.
CHOICES = frozenset({"concatenate", "dynamic_slice", "pad", "select_n"})

#: Operations that move, choose or compare numbers, and round nothing.
EXACT = MOVES | {
    *("abs", "argmax", "argmin", "argsort", "clamp", "concatenate", "dynamic_slice"),
    *("dynamic_update_slice", "eq", "gather", "ge", "gt", "is_finite", "le", "lt", "max", "min"),
    *("ne", "pad", "reduce_max", "reduce_min", "select_n", "sign", "sort", "split"),
    *("stop_gradient", "top_k"),
}

#: Operations that add up terms.
SUMS = frozenset({"dot_general", "reduce_sum", "cumsum"})

#: Functions that are approximated, which no standard requires to be rounded correctly.
_APPROXIMATED = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh"),
        *("digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma"),
        *("log", "log1p", "logistic", "pow", "rsqrt", "sin", "sinh", "tan", "tanh"),
    }
)

#: Of these, exponentials.
EXPONENTIALS = frozenset({"exp", "exp2"})

#: Their error in roundings: up to 2 units in the last place, evenly. That is the bound of most in
#: float32 in the CUDA C++ Programming Guide ("Mathematical Functions"), and of XLA's for CPUs it
#: was 0.2 (sin) to 3 (atan, erf), measured.
_APPROXIMATION = 4.0

#: Equal terms of a sum are rounded alike, all up or all down: added one by one, n of them give an
#: error of n / 16 ulps in the root mean square over all values, measured. Here in roundings, of
#: 0.21 ulps each.
_REPEATED = 0.29


#: Gives the results of an equation on arrays.
_Evaluate = Callable[[Sequence[Any]], Sequence[Any]]

#: Types of arrays and of numbers.
_ARRAYS = (np.ndarray, np.generic)

#: Half the width of the uniform distribution with mean square 1.
SPREAD = math.sqrt(3)

#: A value of a narrow dtype moves to a neighbor with this probability, so that the mean square is
#: that of rounding to nearest, 1/12 ulps. Rounded to the dtype, a uniform number from -0.545 to
#: 0.545 ulps does that.
_MOVED = 1 / 12
_DITHER = 0.5 / (1 - _MOVED)

#: So near, relative to it, a number is one of the precision of products: what computes it may round
#: differently in float32.
_ALMOST = 2.0**-20

#: Below so many ulps, a uniform error that is rounded to nearest is mostly no error.
_LEAST = 0.8


@dataclass(frozen=True)
class Rounding:
    """Root mean square of one rounding, relative to the number.

    Attributes:
      narrow: of the dtype that arrays are kept in.
      wide: of the dtype that is computed in.
      error: uniform random numbers of mean 0 and mean square 1, others at each call:
        float64[shape].
      dtypes: names of floats narrower than float64 in which values are rounded at random, too.
        Values of others are rounded to nearest: the function means to round them.
      products: the precision of matrix products without an explicit one; None for the wide dtype.
      chip: the arithmetic of the chip: how tensor cores add the products of matrix products, and
        which functions are approximate; None for exact ones.
      generator: decides the order of the terms of such sums, and the errors of functions.
    """

    narrow: float
    wide: float
    error: Callable[[Sequence[int]], np.ndarray[Any, Any]]
    dtypes: Collection[str] = ()
    products: ProductPrecision | None = None
    chip: ChipArithmetic = field(default_factory=ChipArithmetic)
    generator: np.random.Generator | None = None


@dataclass(frozen=True, slots=True)
class _Value:
    """What a variable holds.

    Attributes:
      array: its value.
      raw: whether it is an input of the function, or a rearrangement of some.
      terms: of a matrix product, the root of the sum of squares of its terms; else None.
      again: of a matrix product, how far a second product of the same operands may be from it, for
        its roundings; else None.
      products: the numbers of the matrix products whose elements it has.
      subtracted: of a difference, what was subtracted, NaN where it is something else; of an
        exponential, what was subtracted from its exponent; else None.
      exponential: the number of the exponential that it is, perhaps masked; else None.
      magnitude: of a sum of two, the sum of their magnitudes; else None.
      error: of a matrix product, multiplied or added to, how far it may be from what it is when it
        is computed again in another way; else None.
    """

    array: Any
    raw: bool = False
    terms: Any = None
    again: Any = None
    products: frozenset[int] = frozenset()
    subtracted: Any = None
    exponential: int | None = None
    magnitude: Any = None
    error: Any = None


def rounded(jaxpr: Any, arrays: Sequence[Any], rounding: Rounding, draws: int) -> list[list[Any]]:
    """Evaluate a jaxpr ``draws`` times, each time with other rounding errors on the way.

    - Every operation's result is rounded in the wide dtype. Functions such as ``exp`` have four
      roundings, and one of each argument: 2^x is commonly e^(x log 2), whose product is rounded.
      The error of a sum of n terms is
      relative to the sum of their magnitudes and ``sqrt(n)`` times as large, whatever the order
      (Higham and Mary, 2019; see ``tolerance.summation_error``), or, if m neighbouring terms are
      equal, ``m / 16`` times as large.
    - Every term of a sum, and every operand of a matrix product, is rounded in the narrow dtype,
      unless it is an input as it came. So is each use of a matrix product in arithmetic, relative
      to its terms: the kernel may have got it from operands that were rounded, or from another
      product (in the gradient of attention ``sum(p * dp)`` is ``sum(o * do)``, with a rounded
      output ``o``). For that reason uses after the first have the error of a sum of their own.
    - Every operand of a matrix product is rounded in the precision of products, unless it is a
      number of that precision. Uses of a product after the first have the error of two such
      operands.
    - Both operands of a difference that is an exponent are rounded, since a kernel may scale them
      for 2^x. ``(a - b) - c`` is also ``a - (b + c)``. An exponential ``exp(a - b)`` that has been
      summed may be computed again as ``exp(a - lse)``, with the stored ``lse = b + log(sum)``: its
      later uses have the error of rounding ``lse``, the same for all terms of the sum, and that of
      rounding ``a``, or of another matrix product. What is
      multiplied with it, as in ``p * (dp - delta)``, has that error relative to its terms, and
      those of the matrix products in it, at each use after the first: a reference may subtract
      from it what its error cancels with, as the gradient of the largest exponent does.

    Functions that are called are entered; loops and branches count as one operation. An operation
    on arrays without errors is evaluated once for all draws: a loop over the time steps of a
    recurrent function is most of its cost.

    Args:
      jaxpr: what JAX traced of a function on float64.
      arrays: one for each of its inputs.
      rounding: how large the errors are.
      draws: the number of evaluations.
    """
    results = SharedResults()
    draw = functools.partial(_Draw, rounding, results)
    return [
        evaluate_with(jaxpr, arrays, draw().apply, results.constant, lambda value: value.array)
        for _ in range(draws)
    ]


class SharedResults:
    """Results of operations on arrays that are the same in every draw."""

    def __init__(self) -> None:
        """No results yet."""
        self._same = dict[int, Any]()  # keeps arrays, so that no other one has their id
        self._of = dict[tuple[int, ...], tuple[Equation, Sequence[Any]]]()

    def constant(self, array: Any) -> _Value:
        """Keep an input or a constant, which is the same in every draw."""
        self._same[id(array)] = array
        return _Value(array, raw=True)

    def get(self, equation: Equation, evaluate: _Evaluate, arrays: Sequence[Any]) -> Sequence[Any]:
        """Evaluate an equation; once for all draws, if its operands are always the same."""
        if not all(id(array) in self._same for array in arrays):
            return evaluate(arrays)
        key = (id(equation), *map(id, arrays))
        if key not in self._of:
            results = evaluate(arrays)
            if not all(isinstance(result, _ARRAYS) for result in results):
                return results
            self._of[key] = equation, results
            self._same.update((id(result), result) for result in results)
        return self._of[key][1]


class _Draw:
    """One evaluation with rounding errors."""

    def __init__(self, rounding: Rounding, results: SharedResults) -> None:
        """With errors of that size."""
        self._rounding = rounding
        self._results = results
        self._count = 0
        self._spent: set[int] = set()  # the products that arithmetic has used
        self._normalizers: dict[int, Any] = {}  # log-sum-exps by exponential
        self._exponents: dict[int, Any] = {}  # likewise, what rounds what they are subtracted from
        self._errors = self._errors_of_functions() if rounding.chip.functions else None

    def apply(
        self, equation: Equation, operands: Sequence[_Value], evaluate: _Evaluate
    ) -> list[_Value]:
        """Return the results of one operation; see ``pallas_sim.evaluate_with``."""
        name, wide = equation.name, self._rounding.wide
        bind = functools.partial(self._results.get, equation, evaluate)
        moves = name in MOVES or name in CHOICES
        if moves and any(operand.terms is not None for operand in operands):
            return [self._product(bind, operands)]
        if moves and any(operand.subtracted is not None for operand in operands):
            return [self._chosen(name, bind, operands)]
        arrays = list[Any]()
        for operand in operands:
            arrays.append(self._used(operand, name))
            self._spent |= operand.products
        if self._errors is not None and name in self._rounding.chip.functions:
            return [_Value(self._as_on_chip(name, bind, arrays, self._errors))]
        if name in _APPROXIMATED:
            if name in EXPONENTIALS:
                return [self._exponential(name, bind, operands[0], arrays[0])]
            arrays = [self._off(array, wide) for array in arrays]
            results = bind(arrays)
            return [_Value(self._off(result, _APPROXIMATION * wide)) for result in results]
        if name == "sub" and is_float(arrays[0].dtype):
            return [self._difference(bind, operands, arrays)]
        if name == "dot_general":
            unit = self._unit(equation.params)
            arrays = [self._of_product(array, unit) if unit else array for array in arrays]
        results = bind(arrays)
        if name == "dot_general" and self._rounding.chip.sums is not None:
            results = [self._truncated(equation, arrays, results[0], self._rounding.chip.sums)]
        if name in SUMS:
            if name == "reduce_sum":
                self._normalize(operands[0], results[0], _summed_axes(equation, 0))
            return [self._summed(equation, bind, arrays, results[0])]
        if name == "mul" and any(operand.exponential is not None for operand in operands):
            return [self._scaled(operands, arrays, results[0])]
        if name in ("add", "add_any") and is_float(results[0].dtype):
            size = np.abs(arrays[0]) + np.abs(arrays[1])
            error = self._error(name, bind, operands, arrays)
            return [_Value(self._off(results[0], wide), magnitude=size, error=error)]
        if name in ("mul", "div") and _is_inexact(results[0]):
            error = self._error(name, bind, operands, arrays)
            return [_Value(self._off(results[0], wide), error=error)]
        if name in EXACT:
            raw = all(operand.raw for operand in operands if _is_inexact(operand.array))
            error = self._error(name, bind, operands, arrays) if moves else None
            return [
                _Value(result, raw or not _is_inexact(result), error=error) for result in results
            ]
        return [
            _Value(self._off(result, wide)) if _is_inexact(result) else _Value(result, raw=True)
            for result in results
        ]

    def _product(self, bind: _Evaluate, operands: Sequence[_Value]) -> _Value:
        """Elements of a matrix product in other places, or some of them and others.

        An element of another operand is its own only term, and is no other when it is used again.
        """
        (moved,) = bind([operand.array for operand in operands])
        terms, again = list[Any](), list[Any]()
        for operand in operands:
            array = operand.array
            if not _is_inexact(array):  # what is chosen, or where
                terms.append(array)
                again.append(array)
                continue
            alone = np.zeros_like(array) if operand.raw else np.abs(array).astype(array.dtype)
            terms.append(alone if operand.terms is None else operand.terms)
            again.append(np.zeros_like(array) if operand.again is None else operand.again)
        sizes = np.abs(bind(terms)[0])
        products = frozenset[int]().union(*(operand.products for operand in operands))
        return _Value(moved, terms=sizes, again=np.abs(bind(again)[0]), products=products)

    def _chosen(self, name: str, bind: _Evaluate, operands: Sequence[_Value]) -> _Value:
        """Elements of a difference or an exponential in other places, or some of them and others.

        An exponential is one as long as its elements stay where they are.
        """
        (moved,) = bind([operand.array for operand in operands])
        subtracted = list[Any]()
        for operand in operands:
            array = operand.array
            if _is_inexact(array) and operand.subtracted is None:
                array = np.full_like(array, np.nan)
            subtracted.append(array if operand.subtracted is None else operand.subtracted)
        stays = name in ("convert_element_type", "copy", "select_n")
        numbers = {operand.exponential for operand in operands} - {None}
        return _Value(
            moved,
            subtracted=bind(subtracted)[0] if name != "neg" else None,
            exponential=numbers.pop() if stays and len(numbers) == 1 else None,
            error=self._error(name, bind, operands, [operand.array for operand in operands]),
        )

    def _error(
        self, name: str, bind: _Evaluate, operands: Sequence[_Value], arrays: Sequence[Any]
    ) -> Any:
        """Return how far a sum, a product or moved elements are from computing them another way.

        Only the matrix products in it count.
        """
        errors = list[Any]()
        for operand in operands:
            error = operand.error
            if operand.terms is not None:
                error = np.hypot(operand.again, self._rounding.narrow * operand.terms)
            errors.append(error)
        if all(error is None for error in errors):
            return None
        if name in MOVES or name in CHOICES:
            moved = list(arrays)
            for position, (array, error) in enumerate(zip(arrays, errors, strict=True)):
                if _is_inexact(array):
                    moved[position] = np.zeros_like(array)
                    if error is not None:
                        moved[position] += error.astype(array.dtype)
            changes = bind(moved)
        elif name in ("add", "add_any", "sub"):
            changes = [error for error in errors if error is not None]
        else:
            changes = list[Any]()
            for position, error in enumerate(errors):
                if error is not None and (name == "mul" or position == 0):
                    factors = list(arrays)
                    factors[position] = error.astype(arrays[position].dtype)
                    changes += bind(factors)
        return np.sqrt(sum(np.square(np.abs(change)) for change in changes))

    def _difference(
        self, bind: _Evaluate, operands: Sequence[_Value], arrays: Sequence[Any]
    ) -> _Value:
        """Return a difference; one of a difference is one of the sum of what is subtracted."""
        first = operands[0]
        error = self._error("sub", bind, operands, arrays)
        result = self._off(bind(arrays)[0], self._rounding.wide)
        subtracted = np.broadcast_to(arrays[1], np.shape(result))
        if first.subtracted is not None:
            subtracted = subtracted + np.nan_to_num(first.subtracted)
            result = self._moved_alike(result, self._rounding.wide * np.abs(subtracted))
        size = np.abs(arrays[0]) + np.abs(arrays[1])
        return _Value(result, subtracted=subtracted, magnitude=size, error=error)

    def _exponential(self, name: str, bind: _Evaluate, exponent: _Value, array: Any) -> _Value:
        """Return an exponential, whose exponent may be the difference of rounded numbers."""
        wide = self._rounding.wide
        subtracted = np.zeros_like(array)
        rounded = 0.0
        if exponent.subtracted is not None:
            subtracted = exponent.subtracted
            parts = np.nan_to_num(subtracted)
            whole = np.abs(array + parts)
            rounded = wide * np.where(np.isfinite(whole), whole, 0.0)
            array = self._moved(array, rounded)
            array = self._moved_alike(array, wide * np.abs(parts))
        result = self._off(bind([self._off(array, wide)])[0], _APPROXIMATION * wide)
        self._count += 1
        factor = math.log(2) if name == "exp2" else 1.0
        if exponent.error is not None:
            rounded = np.hypot(rounded, exponent.error)
        self._exponents[self._count] = factor * rounded
        return _Value(result, subtracted=factor * subtracted, exponential=self._count)

    def _normalize(self, operand: _Value, total: Any, axes: Sequence[int]) -> None:
        """Keep the logarithm of the first sum of an exponential, with what was subtracted.

        A row in which everything is masked has none.
        """
        number = operand.exponential
        if number is None or number in self._normalizers or not np.size(operand.array):
            return
        subtracted = np.where(np.isnan(operand.subtracted), -np.inf, operand.subtracted)
        most = np.max(subtracted, tuple(axes), keepdims=True)
        if ((subtracted == most) | np.isneginf(subtracted)).all():
            normalizer = most + np.log(np.reshape(total, most.shape))
            self._normalizers[number] = np.where(np.isfinite(normalizer), normalizer, 0.0)

    def _scaled(self, operands: Sequence[_Value], arrays: Sequence[Any], result: Any) -> _Value:
        """Return a product with an exponential; times ones and zeros, it is still one."""
        result = self._off(result, self._rounding.wide)
        position = 0 if operands[0].exponential is not None else 1
        exponential, other = operands[position], operands[1 - position]
        factors = other.array
        binary = ((factors == 0) | (factors == 1)).all()
        if binary and np.shape(result) == np.shape(exponential.array):
            return replace(exponential, array=result)
        normalizer = self._normalizers.get(exponential.exponential or 0)
        if normalizer is None or not is_float(result.dtype):
            return _Value(result)
        size = np.abs(factors) if other.magnitude is None else other.magnitude
        again = np.hypot(
            self._rounding.wide * normalizer, self._exponents[exponential.exponential or 0]
        )
        again = again * np.abs(arrays[position]) * size
        if other.error is not None:
            again = np.hypot(again, np.abs(arrays[position]) * other.error)
        self._count += 1
        product = frozenset({self._count})
        return _Value(result, terms=np.abs(result), again=again, products=product)

    def _used(self, operand: _Value, name: str) -> Any:
        """Add the roundings that an operand may have before the operation ``name`` uses it."""
        array = operand.array
        if operand.raw or name in EXACT or not _is_inexact(array):
            return array
        number = operand.exponential or 0
        normalizer = self._normalizers.get(number)
        if normalizer is not None:
            wide = self._rounding.wide
            array = array * self._moved(np.ones_like(normalizer), wide * np.abs(normalizer))
            array = array.astype(operand.array.dtype)
            array = self._moved(array, np.abs(array) * self._exponents[number])
        narrow = self._rounding.narrow
        if operand.terms is not None:
            if operand.products & self._spent:
                array = self._moved(array, operand.again)
            return self._moved(array, narrow * operand.terms) if narrow else array
        return self._off(array, narrow) if narrow and name in SUMS else array

    def _off(self, array: Any, size: float) -> Any:
        """Return a float with a relative error of ``size``, each element its own."""
        return self._moved(array, size * np.abs(array)) if _is_inexact(array) else array

    def _moved(self, array: Any, size: Any) -> Any:
        """Return a float with an absolute error of ``size``, each element its own, in its dtype.

        An infinity has none: a score that is masked by one stays masked.
        """
        error = self._rounding.error(np.shape(array))
        size = np.where(np.isfinite(array), size, 0.0)
        dtype = array.dtype
        if dtype in (np.float64, np.complex128):
            return array + size * error
        size = np.asarray(size, np.float64)
        if is_float(dtype) and dtype.name in self._rounding.dtypes:
            number = np.maximum(np.abs(np.asarray(array, np.float64)), np.finfo(np.float64).tiny)
            ulp = epsilon(dtype) * np.exp2(np.floor(np.log2(number)))
            few = (size > 0) & (SPREAD * size < _LEAST * ulp)
            size = np.where(few, _DITHER / SPREAD * ulp, size)
        wide = np.asarray(array, np.complex128 if is_complex(dtype) else np.float64)
        return (wide + size * error).astype(dtype)

    def _moved_alike(self, array: Any, size: Any) -> Any:
        """Return a float with an error of ``size``, the same along axes along which this is."""
        least = size
        for axis in range(np.ndim(size)):
            first = np.take(least, [0], axis) if np.shape(least)[axis] else least
            if (least == first).all():
                least = first
        error = self._moved(np.zeros_like(least, np.float64), least)
        return (array + error).astype(array.dtype)

    def _unit(self, params: Any) -> float:
        """Return the last bit of an operand of a product, relative to it; 0 for float32."""
        products = self._rounding.products
        kept = None if products is None else kept_precision(params, products)
        return 0.0 if kept is None else 2.0**-kept.bits

    def _of_product(self, array: Any, unit: float) -> Any:
        """Return an operand of a product with the errors of rounding it, where it has more bits."""
        if not is_float(array.dtype):
            return array
        size = np.abs(array).astype(np.float64)
        bits = np.frexp(size)[0] * 2 / unit
        few = np.abs(bits - np.rint(bits)) * unit <= _ALMOST
        return self._moved(array, np.where(few, 0.0, ROUNDING * unit * size))

    def _summed(
        self, equation: Equation, bind: _Evaluate, arrays: Sequence[Any], result: Any
    ) -> _Value:
        """Return a sum with the error of its order."""
        if not _is_inexact(result):
            return _Value(result, raw=True)
        axes = [_summed_axes(equation, position) for position in range(len(arrays))]
        count = math.prod(arrays[0].shape[axis] for axis in axes[0])
        magnitude = np.abs(bind([np.abs(array) for array in arrays])[0])
        growth: Any = math.sqrt(count)
        equal = [_repeated(array, a) for array, a in zip(arrays, axes, strict=True)]
        if all(mask is not None for mask in equal):
            growth = np.maximum(growth, _REPEATED * np.abs(bind(equal)[0]))
        size = self._rounding.wide * growth * magnitude
        array = self._moved(result, size)
        if equation.name != "dot_general":
            return _Value(array)
        self._count += 1
        terms, again = np.zeros_like(size), size
        unit = self._unit(equation.params)
        if self._rounding.narrow or unit:
            (squares,) = bind([np.square(np.abs(array)) for array in arrays])
            root = np.sqrt(np.abs(squares))
            terms = root if self._rounding.narrow else terms
            again = np.hypot(size, math.sqrt(2) * ROUNDING * unit * root)
        return _Value(array, terms=terms, again=again, products=frozenset({self._count}))

    def _errors_of_functions(self) -> Callable[[Any], Any]:
        """Return errors that are independent, or in half of all draws the largest of one sign.

        Those of a chip are between both: neighboring operands have similar ones, which add up.
        """
        assert self._rounding.generator is not None
        seed = int(self._rounding.generator.integers(1 << 31))
        if seed % 2:
            return lambda x: np.full(np.shape(x), 1.0 if seed % 4 == 1 else -1.0)
        return hashed_errors(seed)

    def _as_on_chip(
        self, name: str, bind: _Evaluate, arrays: Sequence[Any], errors: Callable[[Any], Any]
    ) -> Any:
        """Return a function with the error that the chip makes in float32."""
        (result,) = bind(arrays)
        if not is_float(result.dtype) or not all(is_float(array.dtype) for array in arrays):
            return result
        operands = [np.asarray(array).astype(np.float32) for array in arrays]
        (exact,) = bind([operand.astype(np.float64) for operand in operands])
        approximate = name in self._rounding.chip.approximate
        off = deviation_of_function(name, operands, exact, errors, approximate=approximate)
        return result + off

    def _truncated(
        self, equation: Equation, arrays: Sequence[Any], result: Any, sums: ProductSums
    ) -> Any:
        """Return a matrix product as tensor cores add it, in a random order of its terms."""
        finite = all(np.isfinite(array).all() for array in (*arrays, result))
        if not finite or not all(is_float(array.dtype) for array in arrays):
            return result

        dims, generator = equation.params["dimension_numbers"], self._rounding.generator
        order = np.arange if generator is None else generator.permutation
        lhs, rhs = arrays
        product = tensor_core_product(lhs, rhs, dims, sums.accumulation, sums.least, order)
        return product.astype(result.dtype)


def _summed_axes(equation: Equation, position: int) -> tuple[int, ...]:
    """Return the axes of an operand that are summed over."""
    name, params = equation.name, equation.params
    if name == "dot_general":
        return tuple(params["dimension_numbers"][0][position])
    return (params["axis"],) if name == "cumsum" else tuple(params["axes"])


def _repeated(array: Any, axes: Sequence[int]) -> Any:
    """1.0 where an element equals the next one along the last of ``axes`` and is not 0; or None."""
    if not axes:
        return None
    equal = (array == np.roll(array, -1, axes[-1])) & (array != 0)
    return equal.astype(array.dtype) if equal.any() else None


def _is_inexact(array: Any) -> bool:
    return _is_inexact_dtype(array.dtype)


@functools.cache
def _is_inexact_dtype(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and is_inexact(dtype)
