"""Elementwise functions of float32 in the kernels of GPUs: exact values, off by what a chip is off.

A function is an instruction of the chip, a function of CUDA's library (``libdevice``), or composed
of some, as JAX and the compilers compose it. ``Approximation`` says how far one of them is from the
exact value, and which of its operands and results are flushed to zero. Within that bound, an
``Errors`` decides: ``hashed_errors`` gives each operand an error of its own, as a chip does.

The bounds are those of an H200 and an H100, whose bits are the same: the largest error on every
finite bfloat16 and 8,192 other numbers, rounded up (docs/simulator.md). PTX ISA 9.0 documents these
of the instructions ("Floating Point Instructions"):

==============  ======================================================  ====================
instruction     documented                                              measured
==============  ======================================================  ====================
``ex2.approx``  2^-22, relative                                         0.58 of it
``lg2.approx``  2^-22, absolute from 0.5 to 2, elsewhere relative       0.83, 0.76 of it
``sin.approx``  2^-20.5, absolute, up to 2 pi                           0.48 of it
``cos.approx``  2^-20.5, absolute, up to 2 pi                           0.49 of it
``tanh.approx`` 2^-11, relative                                         0.02 of it
``rsqrt``       2^-22.9, relative                                       0.98 of it
``sqrt``        2^-23, relative                                         0.77 of it
``rcp``         1 ulp                                                   0.97 of it
``div.full``    2 ulps                                                  0.85 of it
==============  ======================================================  ====================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array

#: Gives an error from -1 to 1, in parts of the bound, for each operand (float32, of any shape).
Errors = Callable[[Any], Any]

#: A function of float32, with the errors of its parts.
Function = Callable[..., Any]

#: The smallest number of float32 that is not subnormal.
_TINY = np.float32(2.0**-126)


@dataclass(frozen=True)
class Approximation:
    """How far a function is from the exact value.

    Attributes:
      exact: the value that it approximates, of float64.
      ulps: the largest error in ulps of the result; results that are rounded correctly have 0.5.
      absolute: an error that any result may have, up to as much as the result itself.
      flushes: whether subnormal operands and results are zeros.
      keeps: whether a value that float32 holds is exact.
      largest: the largest result.
    """

    exact: Callable[[Any], Any]
    ulps: float = 0.5
    absolute: float = 0.0
    flushes: bool = False
    keeps: bool = True
    largest: float = np.inf

    def __call__(self, x: Any, errors: Errors) -> Array:
        """Return the function of float32 numbers, each result off by a part of the bound."""
        x = np.asarray(x)
        exact = self.exact((_flushed(x) if self.flushes else x).astype(np.float64))
        nearest = exact.astype(np.float32)
        ulp = np.spacing(np.abs(nearest)).astype(np.float64)
        size = (self.ulps - 0.5) * ulp
        if self.absolute:
            size = np.maximum(size, np.minimum(self.absolute - 0.5 * ulp, np.abs(exact)))
        result = (exact + errors(x) * np.maximum(size, 0.0)).astype(np.float32)
        if self.largest < np.inf:
            result = np.clip(result, -np.float32(self.largest), np.float32(self.largest))
        is_kept = ~np.isfinite(nearest)
        if self.keeps:
            is_kept |= nearest == exact
        result = np.where(is_kept, nearest, result)
        return _flushed(result) if self.flushes else result


def _flushed(x: Any) -> Any:
    """Return numbers with zeros, of the same sign, in place of subnormal ones."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


# Instructions.

_EX2 = Approximation(np.exp2, 1.92, flushes=True)
_LG2 = Approximation(np.log2, 2.15, absolute=0.84 * 2.0**-22, flushes=True, keeps=False)
_RSQRT = Approximation(lambda x: 1 / np.sqrt(x), 1.47)
_SQRT = Approximation(np.sqrt, 0.89)

#: Up to here, ``tanh.approx`` returns its operand.
_TANH_IS_LINEAR = 2.0**-10.5

_TANH = Approximation(
    lambda x: np.where(np.abs(x) < _TANH_IS_LINEAR, x, np.tanh(x)), 129.0, largest=1.0
)

#: The error of ``rcp`` in ulps of its result.
_RECIPROCAL_ULPS = 0.97


def _divide(x: Any, y: Any, errors: Errors) -> Array:
    """Divide as ``div.full``: multiply by ``rcp`` of the divisor, whose exponent has no limits."""
    x, y = np.asarray(x), np.asarray(y)
    fraction, exponent = np.frexp(1 / y.astype(np.float64))
    scaled = np.ldexp(fraction, 24)  # ulps
    whole = np.rint(scaled)
    off = np.rint(scaled + errors(y) * (_RECIPROCAL_ULPS - 0.5))
    reciprocal = np.ldexp(np.where(scaled == whole, whole, off), exponent - 24)
    return (x * reciprocal).astype(np.float32)


def _turned(circle: Callable[[Any], Any]) -> Approximation:
    """Return ``sin.approx`` or ``cos.approx``, a function of turns.

    The chip multiplies by 1 / (2 pi) in float32, rounds toward zero, and keeps the fraction: of
    large operands, nothing of which is right.
    """
    scale = float(np.float32(1 / (2 * np.pi)))

    def exact(x: Any) -> Any:
        turns = x * scale
        nearest = turns.astype(np.float32)
        away = np.abs(nearest) > np.abs(turns)
        nearest = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
        turns = _flushed(nearest).astype(np.float64)
        return circle(2 * np.pi * (turns - np.rint(turns)))

    return Approximation(exact, absolute=1.41 * 2.0**-22, flushes=True, largest=1.0)


# Functions: of the library, and composed.

_LOG2_E, _LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)


def _logistic(exponential: Function) -> Function:
    one = np.float32(1)
    return lambda x, errors: _divide(one, one + exponential(-np.asarray(x), errors), errors)


_EXP = Approximation(np.exp, 1.66)


def _exp2(x: Any, errors: Errors) -> Array:
    """Return 2^x by ``ex2.approx``; as a square where it would be flushed."""
    x = np.asarray(x)
    is_small = x < -126
    root = _EX2(np.where(is_small, np.float32(0.5) * x, x), errors)
    return np.where(is_small, root * root, root)


#: By the names of primitives, in all kernels.
FUNCTIONS: Mapping[str, Function] = {
    "exp": _EXP,
    "exp2": _exp2,
    "expm1": Approximation(np.expm1, 1.21),
    "log": Approximation(np.log, 0.81),
    "log2": Approximation(np.log2, 0.84),
    "log1p": Approximation(np.log1p, 0.84),
    "tanh": Approximation(np.tanh, 1.74, largest=1.0),
    "sin": Approximation(np.sin, 1.49, largest=1.0),
    "cos": Approximation(np.cos, 1.49, largest=1.0),
    "cbrt": Approximation(np.cbrt, 0.84),
    "sqrt": _SQRT,
    "rsqrt": _RSQRT,
    "div": _divide,
    "logistic": _logistic(_EXP),
}


def _approximate_exp(x: Any, errors: Errors) -> Array:
    return _EX2(np.asarray(x) * _LOG2_E, errors)


#: In kernels of Mosaic GPU with ``approx_math``.
APPROXIMATE_FUNCTIONS: Mapping[str, Function] = {
    **FUNCTIONS,
    "exp": _approximate_exp,
    "exp2": _EX2,
    "log": lambda x, errors: _LG2(x, errors) * _LN_2,
    "log2": _LG2,
    "tanh": _TANH,
    "sin": _turned(np.sin),
    "cos": _turned(np.cos),
    "logistic": _logistic(_approximate_exp),
}


#: Primitives that mean one function: a kernel may compute one by another.
_FAMILIES = (
    frozenset({"exp", "exp2", "logistic"}),
    frozenset({"log", "log2"}),
    frozenset({"sin", "cos"}),
)


def functions_alike(names: Iterable[str]) -> frozenset[str]:
    """Return the primitives among these that are functions of this module, and those like them."""
    known = frozenset(names).intersection(FUNCTIONS)
    return known.union(*(family for family in _FAMILIES if family & known))


def deviation_of_function(
    name: str, operands: Sequence[Any], exact: Any, errors: Errors, *, approximate: bool = False
) -> Array:
    """Return how far a function is from the exact value on a chip; 0 where either is not finite.

    Args:
      name: of the primitive, one of ``functions_alike``.
      operands: float32, of any shape.
      exact: the value of these operands, float64.
      errors: parts of the bound.
      approximate: whether the kernel has ``approx_math``.
    """
    table = APPROXIMATE_FUNCTIONS if approximate else FUNCTIONS
    result = table[name](*operands, errors)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(result) & np.isfinite(exact), result - exact, 0.0)


def hashed_errors(seed: int) -> Errors:
    """Return errors that depend on the bits of the operand and on a seed, and on nothing else.

    So the same operand has the same result everywhere in a run, as on a chip. Errors are spread
    evenly from -1 to 1, and another seed gives others.
    """
    start = np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    first, second = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)

    def errors(x: Any) -> Array:
        # The finalizer of C. Wellons, "Prospecting for Hash Functions", 2018.
        bits = np.atleast_1d(np.asarray(x, np.float32)).view(np.uint32) ^ start
        for shift, factor in ((16, first), (15, second)):
            bits ^= bits >> np.uint32(shift)
            bits *= factor
        bits ^= bits >> np.uint32(16)
        return (bits * 2.0**-31 - 1.0).reshape(np.shape(x))

    return errors
