"""Arrays as safetensors, of every dtype that JAX has.

The format has names for most of them. Others (4 bits and less, complex128) are stored as their
bytes; shape and dtype of every array are in the manifest besides, and those count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.errors import GoldenError, OptionError

type Array = np.ndarray[Any, Any]

#: dtypes that the format has a name for; see the documentation of safetensors.
_NAMED = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "complex64"),
        *("float8_e4m3fn", "float8_e5m2"),
    }
)


def dump(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """Arrays by name, as the bytes of a file; equal arrays give equal bytes.

    Raises:
      OptionError: safetensors is not installed.
    """
    save = _module("safetensors.numpy").save
    return bytes(save({name: _named(array) for name, array in arrays.items()}, metadata))


def load(content: bytes, kinds: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """The arrays of a file, whose dtypes and shapes are those of ``kinds``.

    Raises:
      GoldenError: the content is none of that.
      OptionError: safetensors is not installed.
    """
    module = _module("safetensors")
    try:
        stored = {name: bytes(each["data"]) for name, each in module.deserialize(content)}
    except module.SafetensorError as error:
        raise GoldenError(f"this is no safetensors file, or a part of one: {error}") from None
    found: dict[str, Array] = {}
    for name, (dtype, shape) in kinds.items():
        if name not in stored:
            raise GoldenError(f"the array {name!r} is missing in its file")
        found[name] = _array(name, stored[name], dtype_of(dtype), shape)
    return found


def metadata_of(content: bytes) -> Mapping[str, str]:
    """The metadata of a file.

    Raises:
      GoldenError: the content is no safetensors file.
    """
    import json

    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        metadata = header.get("__metadata__", {})
    except (ValueError, AttributeError):
        raise GoldenError("this is no safetensors file, or a part of one") from None
    return metadata if isinstance(metadata, dict) else {}


def digest(array: Array) -> str:
    """SHA-256 of an array's dtype, shape and bytes."""
    head = f"{array.dtype.name} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name.

    Raises:
      GoldenError: there is none.
    """
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise GoldenError(f"there is no dtype {name!r}") from None


def _named(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    if array.dtype.name in _NAMED:
        return array
    return np.frombuffer(array.tobytes(), np.uint8)


def _array(name: str, content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(content):
        raise GoldenError(
            f"the array {name!r} must be {dtype.name}{list(shape)}, but it has {len(content)} bytes"
        )
    return np.frombuffer(content, dtype).reshape(shape)


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise OptionError(
            "goldens are kept as safetensors: pip install 'pytest-pallas[golden]'"
        ) from None
