"""Rules: comparisons, logic, choices between elements, and conversions between dtypes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import (
    SMALL,
    compute_dtype,
    converter,
    is_complex,
    is_float,
)
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.elements.elementwise import direct, elementwise
from pytest_pallas.simulator.values import KeyArray, is_key_dtype

if TYPE_CHECKING:
    from pytest_pallas.simulator.thread import Thread

_SIGNED = {size: np.dtype(f"int{8 * size}") for size in (1, 2, 4, 8)}


def _compare(name: str, function: Evaluate) -> None:
    @rule(name)
    def _bind(eqn: Equation) -> Evaluate:
        dtype = eqn.ins[0].dtype
        if is_key_dtype(dtype):
            return lambda x, y: _same_keys(name, x, y)
        if is_complex(dtype) and name not in ("eq", "ne"):
            raise NotImplementedError("complex numbers are compared by eq and ne only")
        return elementwise(eqn, function, direct(eqn, function))


def _same_keys(name: str, x: KeyArray, y: KeyArray) -> Any:
    words = tuple(range(-(x.data.ndim - x.ndim), 0))
    same = (x.data == y.data).all(axis=words)
    return same if name == "eq" else ~same


for _name, _function in {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}.items():
    _compare(_name, _function)


def _logical(name: str, function: Evaluate) -> None:
    @rule(name)
    def _bind(eqn: Equation) -> Evaluate:
        return elementwise(eqn, function)


for _name, _function in {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
}.items():
    _logical(_name, _function)


@rule("select_n")
def _select_n(eqn: Equation) -> Evaluate:
    which, *cases = eqn.ins
    if len(cases) == 1:
        return lambda which, case: case
    if is_key_dtype(eqn.out.dtype):
        return _select_keys
    if which.shape == ():
        # The case itself, and no copy of it.
        return lambda which, *cases: cases[int(which)]
    if which.dtype == np.bool_:
        return _select
    return _select_of_many


def _select(which: Any, off: Any, on: Any) -> Any:
    size = off.dtype.itemsize
    if which.size < SMALL or size > 8:
        return np.where(which, on, off)
    # By bits, which takes as long for any mask; np.where guesses which element comes next.
    word = _SIGNED[size]
    mask = np.negative(which.view(np.int8)).astype(word, copy=False)
    below = off.view(word)
    found = (on.view(word) ^ below) & mask
    found ^= below
    return found.view(off.dtype)


def _select_of_many(which: Any, *cases: Any) -> Any:
    found = cases[0]
    for number, case in enumerate(cases[1:], 1):
        found = np.where(which == number, case, found)
    return found


def _select_keys(which: Any, *cases: KeyArray) -> KeyArray:
    data = [case.data for case in cases]
    which = np.reshape(which, which.shape + (1,) * (data[0].ndim - which.ndim))
    return KeyArray(_select_of_many(which, *data), cases[0].dtype)


#: The largest numbers of the formats to which a GPU's ``cvt.satfinite`` converts.
_LARGEST = {
    np.dtype(dtype): float(ml_dtypes.finfo(dtype).max)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}


@rule("convert_element_type", threaded=True)
def _convert_element_type(eqn: Equation) -> Evaluate:
    """As JAX converts; but kernels of GPUs saturate float8, where JAX has NaN or infinity.

    Mosaic GPU asks for ``cvt.satfinite`` (``fragmented_array.py``), and so does Triton: an H200
    gave 448 and 57344 for all larger numbers on both routes.
    """
    source, target = eqn.ins[0].dtype, eqn.out.dtype
    convert = converter(source, target)
    largest = _LARGEST.get(target)
    if largest is None or not is_float(source) or source == target:
        return lambda thread, array: convert(array)

    def evaluate(thread: Thread, array: Any) -> Any:
        if thread.kernels and thread.machine.platform == "gpu":
            array = np.clip(array.astype(compute_dtype(source)), -largest, largest).astype(source)
        return convert(array)

    return evaluate
