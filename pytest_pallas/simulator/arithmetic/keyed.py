"""Typed PRNG keys in rules that move elements around: their words are additional axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.compat.keys import key_shape
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.values import KeyArray, is_key_dtype


def words(eqn: Equation) -> tuple[int, ...]:
    """The shape of one key, if the equation moves typed PRNG keys; () for arrays."""
    for aval in (*eqn.ins, *eqn.outs):
        if is_key_dtype(getattr(aval, "dtype", None)):
            return key_shape(aval.dtype)
    return ()


def elements(eqn: Equation) -> np.dtype[Any]:
    """The dtype of the arrays that stand for the first result: uint32 for keys."""
    return np.dtype(np.uint32) if is_key_dtype(eqn.out.dtype) else np.dtype(eqn.out.dtype)


def words_of(value: Any) -> Any:
    """What a reference to a value holds: the words of keys, and arrays as they are."""
    return value.data if isinstance(value, KeyArray) else value


def value_of(memory: Any, aval: Any) -> Any:
    """The value of an abstract type that is in the memory of a reference."""
    return KeyArray(memory, aval.dtype) if is_key_dtype(aval.dtype) else memory


def on_words(eqn: Equation, evaluate: Evaluate) -> Evaluate:
    """Let a function of arrays evaluate an equation, also where its operands are keys.

    Args:
      eqn: the equation.
      evaluate: takes arrays and gives arrays; keys have their words as the last axes.
    """
    if not words(eqn):
        return evaluate
    dtypes = [out.dtype if is_key_dtype(out.dtype) else None for out in eqn.outs]

    def evaluate_keys(*values: Any) -> Any:
        result = evaluate(*(each.data if isinstance(each, KeyArray) else each for each in values))
        if isinstance(result, np.ndarray):
            return result if dtypes[0] is None else KeyArray(result, dtypes[0])
        return [
            each if dtype is None else KeyArray(each, dtype)
            for each, dtype in zip(result, dtypes, strict=True)
        ]

    return evaluate_keys
