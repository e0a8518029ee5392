"""Rules: the bits of elements as elements of another dtype, and several in one word."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.bitcasts import bitcast_axis, reinterpret
from pytest_pallas.simulator.dtypes import (
    bit_width,
    codes_of,
    convert,
    from_codes,
    is_float,
    words_of,
)
from pytest_pallas.simulator.registry import Equation, Evaluate, rule


@rule("bitcast_convert_type")
def _bitcast_convert_type(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    if bit_width(eqn.ins[0].dtype) == bit_width(dtype) == 8 * dtype.itemsize:
        return lambda x: x.view(dtype)
    return lambda x: reinterpret(x, dtype)


@rule("bitcast")
def _bitcast(eqn: Equation) -> Evaluate:
    """Bind the TPU's bitcast, which keeps the rank: one axis becomes longer or shorter."""
    dtype = eqn.out.dtype
    # Before JAX 0.12 the axis is always the second minor one.
    axis = eqn.params.get("dim", eqn.ins[0].ndim - 2)

    return lambda x: bitcast_axis(x, dtype, axis)


@rule("pack_elementwise")
def _pack_elementwise(eqn: Equation) -> Evaluate:
    """Bind packing: the first operand is in the lowest bits of each word."""
    packed = np.dtype(eqn.params["packed_dtype"])
    width = bit_width(packed)
    word = eqn.out.dtype.type
    mask = word((1 << width) - 1)
    rounds = is_float(packed)

    def pack(*values: Any) -> Any:
        found = word(0)
        for number, value in enumerate(values):
            part = codes_of(convert(value, packed) if rounds else value)
            found = found | ((part.astype(word) & mask) << word(number * width))
        return found

    return pack


@rule("unpack_elementwise")
def _unpack_elementwise(eqn: Equation) -> Evaluate:
    packed, unpacked = np.dtype(eqn.params["packed_dtype"]), eqn.out.dtype
    width = bit_width(packed)
    start = eqn.params["index"] * width

    def unpack(x: Any) -> Any:
        codes = codes_of(x)
        part = (codes >> codes.dtype.type(start)) & codes.dtype.type((1 << width) - 1)
        return convert(from_codes(part.astype(words_of(packed)), packed), unpacked)

    return unpack
