"""The bits of elements as elements of another dtype, which may be wider or narrower."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.dtypes import bit_width, codes_of, from_codes, words_of

Dtype = np.dtype[Any]


def reinterpret(array: Any, dtype: Dtype) -> Any:
    """The bits of elements as elements of another dtype.

    Where those are narrower, a last axis is added, with the lowest bits first; where they are
    wider, the last axis is taken away.
    """
    source, target = bit_width(array.dtype), bit_width(dtype)
    if source == target:
        return from_codes(codes_of(array), dtype)
    if source > target:
        if target < 8:
            parts = 8 // target
            octets = _bytes_of(array)
            amounts = np.arange(parts, dtype=np.uint8) * np.uint8(target)
            codes = (octets[..., None] >> amounts) & np.uint8((1 << target) - 1)
            return from_codes(codes.reshape(*array.shape, source // target), dtype)
        return _bytes_of(array).view(words_of(dtype)).view(dtype)
    codes = codes_of(array)
    if source < 8:
        parts = 8 // source
        amounts = np.arange(parts, dtype=np.uint8) * np.uint8(source)
        pieces = codes.reshape(*array.shape[:-1], target // 8, parts) << amounts
        codes = np.bitwise_or.reduce(pieces, axis=-1)
    words = np.ascontiguousarray(codes).view(words_of(dtype))
    return words[..., 0].view(dtype)


def _bytes_of(array: Any) -> Any:
    """The bytes of each element, as a last axis."""
    return np.ascontiguousarray(codes_of(array)[..., None]).view(np.uint8)


def bitcast_axis(array: Any, dtype: Dtype, axis: int) -> Any:
    """As ``reinterpret``, where one axis becomes longer or shorter."""
    source, target = bit_width(array.dtype), bit_width(dtype)
    if source == target:
        return reinterpret(array, dtype)
    array = np.moveaxis(array, axis, -1)
    *leading, size = array.shape
    if source < target:
        parts = target // source
        found = reinterpret(array.reshape(*leading, size // parts, parts), dtype)
    else:
        found = reinterpret(array, dtype).reshape(*leading, size * (source // target))
    return np.moveaxis(found, -1, axis)
