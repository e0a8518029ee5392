"""Rules: arithmetic of elements, and functions of them such as ``exp``.

``elementwise`` binds a numpy function the way JAX evaluates it: in the dtype that narrow ones
are computed in, rounded once. The rules of other modules use it too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_sim.dtypes import (
    FLOAT32,
    SMALL,
    compute_dtype,
    convert,
    converter,
    is_complex,
    is_float,
    is_integer,
    rounded_to_bits,
    rounding,
    widen,
)
from pallas_sim.functions import APPROXIMATE_FUNCTIONS, FUNCTIONS
from pallas_sim.registry import Equation, Evaluate, rule

if TYPE_CHECKING:
    from pallas_sim.machine import Thread


def elementwise(eqn: Equation, function: Evaluate, small: Evaluate | None = None) -> Evaluate:
    """Bind a numpy function of arrays, computed in the compute dtype of the first operand.

    Args:
      eqn: whose operands have one dtype.
      function: computes the result in the dtype of its operands, or a bool.
      small: computes small arrays of a narrow float directly, if ml_dtypes rounds them once.
    """
    narrow, out = eqn.ins[0].dtype, eqn.out.dtype
    wide = compute_dtype(narrow)
    if narrow == wide:
        return function
    up = converter(narrow, wide)
    finish = converter(wide, out) if out != np.bool_ else lambda value: value
    if len(eqn.ins) == 1:

        def unary(x: Any) -> Any:
            if small is not None and x.size < SMALL:
                return small(x)
            return finish(function(up(x)))

        return unary

    def binary(x: Any, y: Any) -> Any:
        if small is not None and x.size < SMALL and y.size < SMALL:
            return small(x, y)
        return finish(function(up(x), up(y)))

    def many(*values: Any) -> Any:
        return finish(function(*map(up, values)))

    return binary if len(eqn.ins) == 2 else many


def direct(eqn: Equation, function: Evaluate) -> Evaluate | None:
    """Return the function itself if ml_dtypes and numpy compute it in float32 and round once."""
    dtype = eqn.ins[0].dtype
    return function if is_float(dtype) and dtype.itemsize == 2 else None


def register(functions: Mapping[str, Evaluate], *, once: bool = False) -> None:
    """Register rules for primitives that numpy computes as JAX does.

    Args:
      functions: by the names of the primitives.
      once: whether ml_dtypes rounds their results once, as JAX does.
    """
    for name, function in functions.items():

        def _bind(eqn: Equation, function: Evaluate = function) -> Evaluate:
            return elementwise(eqn, function, direct(eqn, function) if once else None)

        (function_rule if name in FUNCTIONS else rule)(name)(_bind)


def function_rule(
    name: str, instruction: Callable[[Equation], Evaluate] | None = None
) -> Callable[[Callable[[Equation], Evaluate]], Callable[[Equation], Evaluate]]:
    """Register the rule of a function that kernels of GPUs compute as the chip does: ``functions``.

    Args:
      name: of the primitive.
      instruction: binds it in these kernels where that is not known; by default like elsewhere.
    """

    def register(bind: Callable[[Equation], Evaluate]) -> Callable[[Equation], Evaluate]:
        @functools.wraps(bind)
        def bind_both(eqn: Equation) -> Evaluate:
            elsewhere = bind(eqn)
            in_kernels = instruction(eqn) if instruction else elsewhere
            if any(aval.dtype != FLOAT32 for aval in eqn.ins):
                exact, approximate = None, None
            else:
                exact, approximate = FUNCTIONS[name], APPROXIMATE_FUNCTIONS[name]

            def evaluate(thread: Thread, *operands: Any) -> Any:
                machine = thread.machine
                if not thread.kernels or machine.platform != "gpu":
                    return elsewhere(*operands)
                function, errors = exact, machine.errors_of_functions
                if function is None or errors is None:
                    return in_kernels(*operands)
                if thread.approximates and approximate is not None:
                    function = approximate
                return function(*operands, errors)[()]

            return evaluate

        return rule(name, threaded=True, computes=True)(bind_both)

    return register


# Operators of Python are numpy's functions, but faster where both operands are scalars.
register(
    {
        "add": operator.add,
        "add_any": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "square": lambda x: x * x,
        "floor": np.floor,
        "ceil": np.ceil,
        "sqrt": np.sqrt,
    },
    once=True,
)


@function_rule("div")
def _div(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if not is_integer(dtype):
        return elementwise(eqn, operator.truediv, direct(eqn, operator.truediv))
    return elementwise(eqn, _divider(compute_dtype(dtype)))


def _divider(dtype: np.dtype[Any]) -> Evaluate:
    """Return integer division that truncates; by zero, all bits are set."""
    ones = ~dtype.type(0)

    def of_words(x: Any, y: Any) -> Any:
        # float64 holds the operands, and no quotient is so near to an integer that it rounds to
        # it. The smallest number by -1 is that number: int64 holds the quotient, which wraps.
        quotient = np.true_divide(x, y).astype(np.int64).astype(dtype)
        return quotient if _nonzero(y) else np.where(y == 0, ones, quotient)

    def of_long_words(x: Any, y: Any) -> Any:
        quotient = x // y
        inexact = quotient * y != x
        quotient = quotient + (inexact & ((x < 0) != (y < 0)))
        return np.where(y == 0, ones, quotient).astype(dtype)

    large = of_words if dtype.itemsize <= 4 else of_long_words

    def divide(x: Any, y: Any) -> Any:
        if x.ndim or y.ndim:
            return large(x, y)
        a, b = int(x), int(y)
        if b == 0:
            return ones
        return np.array(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)).astype(dtype)[()]

    return divide


@rule("rem")
def _rem(eqn: Equation) -> Evaluate:
    if not is_integer(eqn.ins[0].dtype):
        return elementwise(eqn, np.fmod)

    kind = compute_dtype(eqn.ins[0].dtype).type

    def remainder(x: Any, y: Any) -> Any:
        if not (x.ndim or y.ndim):
            a, b = int(x), int(y)
            return kind((-(-a % abs(b)) if a < 0 else a % abs(b)) if b else a)
        result = np.fmod(x, y)
        return result if _nonzero(y) else np.where(y == 0, x, result)

    return elementwise(eqn, remainder)


def _nonzero(divisor: Any) -> bool:
    return bool(divisor != 0) if divisor.ndim == 0 else bool(divisor.all())


@rule("max", "min")
def _extreme(eqn: Equation) -> Evaluate:
    extreme_of = maximum_of if eqn.name == "max" else minimum_of
    return elementwise(eqn, extreme_of(eqn.ins[0].dtype))


@rule("clamp")
def _clamp(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    larger, smaller = maximum_of(dtype), minimum_of(dtype)
    return elementwise(eqn, lambda low, x, high: smaller(larger(x, low), high))


def maximum_of(dtype: np.dtype[Any]) -> Evaluate:
    """Return the larger elements of two arrays: NaN if one of them is; +0 is larger than -0."""
    return _extreme_of(dtype, np.maximum, np.greater, lambda x, y: x + y)


def minimum_of(dtype: np.dtype[Any]) -> Evaluate:
    """Return the smaller elements of two arrays: NaN if one of them is; -0 is smaller than +0."""
    return _extreme_of(dtype, np.minimum, np.less, lambda x, y: -(-x - y))


def _extreme_of(
    dtype: np.dtype[Any], ufunc: Evaluate, before: Evaluate, of_zeros: Evaluate
) -> Evaluate:
    if is_complex(dtype):
        return lambda x, y: np.where(_lexicographic(before, x, y) | np.isnan(x), x, y)
    if not is_float(dtype):
        return ufunc

    def extreme(x: Any, y: Any) -> Any:
        result = ufunc(x, y)
        if result.all():
            return result
        return np.where((x == 0) & (y == 0), of_zeros(x, y), result)

    return extreme


def _lexicographic(before: Evaluate, x: Any, y: Any) -> Any:
    return np.where(x.real == y.real, before(x.imag, y.imag), before(x.real, y.real))


@rule("abs", "neg")
def _change_sign(eqn: Equation) -> Evaluate:
    function = np.abs if eqn.name == "abs" else operator.neg
    if direct(eqn, function) is None:
        return elementwise(eqn, function)
    dtype, rest, sign = eqn.out.dtype, np.uint16(0x7FFF), np.uint16(0x8000)
    if eqn.name == "abs":
        return lambda x: (x.view(np.uint16) & rest).view(dtype)
    return lambda x: (x.view(np.uint16) ^ sign).view(dtype)


@rule("sign")
def _sign(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if is_complex(dtype):
        return lambda x: np.where(x == 0, x, x / np.abs(x)).astype(dtype)
    if is_float(dtype):
        return elementwise(eqn, lambda x: np.copysign(np.sign(x), x))
    return elementwise(eqn, np.sign)


@function_rule("rsqrt")
def _rsqrt(eqn: Equation) -> Evaluate:
    one = compute_dtype(eqn.ins[0].dtype).type(1)
    return elementwise(eqn, lambda x: one / np.sqrt(x))


@rule("round")
def _round(eqn: Equation) -> Evaluate:
    if eqn.params["rounding_method"].name == "TO_NEAREST_EVEN":
        return elementwise(eqn, np.rint)

    def away_from_zero(x: Any) -> Any:
        whole = np.trunc(x)
        # The difference is exact, where x + 0.5 would be rounded.
        return whole + np.copysign(np.abs(x - whole) >= 0.5, x).astype(x.dtype)

    return elementwise(eqn, away_from_zero)


register({"is_finite": np.isfinite, "_copysign": np.copysign})


@rule("real", "imag")
def _part(eqn: Equation) -> Evaluate:
    return operator.attrgetter(eqn.name)


@rule("complex")
def _complex(eqn: Equation) -> Evaluate:
    dtype, shape = eqn.out.dtype, eqn.out.shape

    def from_parts(x: Any, y: Any) -> Any:
        # Not x + 1j * y, which loses the sign of zeros, and all of infinity.
        result = np.empty(shape, dtype)
        result.real, result.imag = x, y
        return result

    return from_parts


@rule("conj")
def _conj(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return lambda x: np.conj(x).astype(dtype, copy=False)


@rule("integer_pow")
def _integer_pow(eqn: Equation) -> Evaluate:
    """Bind a power by repeated squaring, where each product is rounded."""
    exponent = int(eqn.params["y"])
    dtype = eqn.ins[0].dtype
    rounded = rounding(dtype)
    one = np.ones((), compute_dtype(dtype))[()]

    def power(x: Any) -> Any:
        if exponent == 0:
            return np.ones_like(x)
        result, square, rest = None, x, abs(exponent)
        while rest:
            if rest & 1:
                result = square if result is None else rounded(result * square)
            rest >>= 1
            if rest:
                square = rounded(square * square)
        return one / result if exponent < 0 else result

    return elementwise(eqn, power)


# Exponentials, logarithms, trigonometric, hyperbolic and special functions.
#
# numpy and scipy compute them in float32, or float64, where JAX uses approximations of its own: the
# results differ by an ulp or two, and seldom at all after rounding to bfloat16 or float16. Where
# JAX composes a function of others, and rounds between, so do the rules. In kernels of GPUs, exp2
# and log2 are instructions, whose results are rounded once, and functions of float32 have the error
# of the chip (``pallas_sim.functions``).


#: Functions that numpy calls as JAX does.
_SAME_NAMES = ["exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan", "sinh", "cosh", "cbrt"]
_ARCS = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
}
register({**{name: getattr(np, name) for name in _SAME_NAMES}, **_ARCS})


@function_rule("exp2", lambda eqn: elementwise(eqn, np.exp2))
def _exp2(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    scale = widen(np.array(np.log(2), dtype))[()]
    rounded = rounding(dtype)
    return elementwise(eqn, lambda x: np.exp(rounded(scale * x)))


@function_rule("log2", lambda eqn: elementwise(eqn, np.log2))
def _log2(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if is_complex(dtype):
        dtype = np.zeros((), dtype).real.dtype
    scale = widen(np.array(1.4426950408889634, dtype))[()]
    rounded = rounding(eqn.ins[0].dtype)
    return elementwise(eqn, lambda x: rounded(np.log(x)) * scale)


@function_rule("logistic")
def _logistic(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    rounded = rounding(dtype)
    one = compute_dtype(dtype).type(1)
    return elementwise(eqn, lambda x: one / rounded(one + rounded(np.exp(-x))))


@rule("pow")
def _pow(eqn: Equation) -> Evaluate:
    dtype, exponent = eqn.out.dtype, eqn.ins[1].dtype
    if is_integer(exponent):
        wide = compute_dtype(dtype)

        def of_integers(x: Any, y: Any) -> Any:
            y = widen(convert(y, dtype))
            return convert(np.power(convert(x, wide), y), dtype)

        return of_integers
    return elementwise(eqn, np.power)


#: Bits of an approximate reciprocal: the fewest with which it passes JAX's own test of the TPU's
#: (``ops_test.py``, ``test_reciprocal``). Nothing else says how precise it is.
RECIPROCAL_BITS = 13


@rule("reciprocal")
def _reciprocal(eqn: Equation) -> Evaluate:
    """Bind Pallas' reciprocal: an approximate one is rounded to few bits.

    Without ``full_range``, an approximate one is NaN where JAX says that it may be wrong.
    """
    dtype = eqn.out.dtype
    one = compute_dtype(dtype).type(1)
    if not eqn.params["approx"]:
        return elementwise(eqn, lambda x: one / x)
    full_range = eqn.params.get("full_range", True)
    tiny = np.finfo(np.float32).tiny

    def approximate(x: Any) -> Any:
        x = np.asarray(convert(x, FLOAT32))
        result = rounded_to_bits(np.float32(1) / x, RECIPROCAL_BITS)
        if not full_range:
            inside = (np.abs(x) >= tiny) & (np.abs(result) > tiny) & np.isfinite(result)
            result = np.where(inside, result, np.float32(np.nan))
        return convert(result, dtype)

    return approximate


def _register_special(name: str, bind: Callable[[Any], Evaluate]) -> None:
    """Register a rule for a function of scipy.special, imported when it is needed."""

    @rule(name)
    def _bind(eqn: Equation) -> Evaluate:
        import scipy.special

        function = bind(scipy.special)
        wide = compute_dtype(eqn.ins[0].dtype)

        def evaluate(*values: Any) -> Any:
            return function(*values).astype(wide, copy=False)

        return elementwise(eqn, evaluate)


_SPECIAL: dict[str, Callable[[Any], Evaluate]] = {
    "erf": lambda special: special.erf,
    "erfc": lambda special: special.erfc,
    "erf_inv": lambda special: special.erfinv,
    "lgamma": lambda special: lambda x: np.where(np.isinf(x), np.inf, special.gammaln(x)),
    "digamma": lambda special: lambda x: np.where(x == 0, -np.inf, special.digamma(x)),
}
for _name, _special in _SPECIAL.items():
    _register_special(_name, _special)
