"""Rules: exponentials, logarithms, trigonometric, hyperbolic and special functions.

numpy and scipy compute them in float32, or float64, where JAX uses approximations of its own: the
results differ by an ulp or two, and seldom at all after rounding to bfloat16 or float16. Where
JAX composes a function of others, and rounds between, so do the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import (
    FLOAT32,
    compute_dtype,
    convert,
    is_complex,
    is_integer,
    rounding,
    widen,
)
from pytest_pallas.simulator.arithmetic.rounding import rounded_to_bits
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.elements.elementwise import elementwise

_FUNCTIONS: dict[str, Evaluate] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "atan2": np.arctan2,
}


def _register(name: str, function: Evaluate) -> None:
    @rule(name)
    def _bind(eqn: Equation) -> Evaluate:
        return elementwise(eqn, function)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)


@rule("exp2")
def _exp2(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    scale = widen(np.array(np.log(2), dtype))[()]
    rounded = rounding(dtype)
    return elementwise(eqn, lambda x: np.exp(rounded(scale * x)))


@rule("log2")
def _log2(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if is_complex(dtype):
        dtype = np.zeros((), dtype).real.dtype
    scale = widen(np.array(1.4426950408889634, dtype))[()]
    rounded = rounding(eqn.ins[0].dtype)
    return elementwise(eqn, lambda x: rounded(np.log(x)) * scale)


@rule("logistic")
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
        found = rounded_to_bits(np.float32(1) / x, RECIPROCAL_BITS)
        if not full_range:
            inside = (np.abs(x) >= tiny) & (np.abs(found) > tiny) & np.isfinite(found)
            found = np.where(inside, found, np.float32(np.nan))
        return convert(found, dtype)

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


def _polygamma(special: Any) -> Evaluate:
    def polygamma(order: Any, x: Any) -> Any:
        order, x = np.float64(order), np.float64(x)
        sign = np.where(order % 2 == 0, -1.0, 1.0)
        found = sign * special.gamma(order + 1) * special.zeta(order + 1, x)
        found = np.where(order == 0, special.digamma(x), found)
        return np.where((order < 0) | (order != np.floor(order)), np.nan, found)

    return polygamma


def _lgamma(special: Any) -> Evaluate:
    return lambda x: np.where(np.isinf(x), np.inf, special.gammaln(x))


_SPECIAL: dict[str, Callable[[Any], Evaluate]] = {
    "erf": lambda special: special.erf,
    "erfc": lambda special: special.erfc,
    "erf_inv": lambda special: special.erfinv,
    "lgamma": _lgamma,
    "digamma": lambda special: lambda x: np.where(x == 0, -np.inf, special.digamma(x)),
    "polygamma": _polygamma,
    "igamma": lambda special: special.gammainc,
    "igammac": lambda special: special.gammaincc,
    "zeta": lambda special: special.zeta,
    "bessel_i0e": lambda special: special.i0e,
    "bessel_i1e": lambda special: special.i1e,
    "regularized_incomplete_beta": lambda special: special.betainc,
}
for _name, _special in _SPECIAL.items():
    _register_special(_name, _special)
