"""Write calls and arrays as JSON and safetensors, without pickles, and read them back.

Reading executes nothing of a file. Values are arrays, numbers, strings, dtypes and containers of
these. Anything else (a function, a mask object) is written as ``opaque``, by its name: that
tells the call from others, but the call can only be made by drawing it again.

The format has names for most dtypes that JAX has. Arrays of the others (4 bits and less,
complex128) are stored as their bytes, and so are compressed ones. The manifest has the dtype and
shape of every array, and a reader takes them from there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import ml_dtypes
import numpy as np

from pallas_sim.errors import OptionError
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.decoding import AsWritten, DataError, decode, parse, shown
from pytest_pallas.errors import GoldenError

type Array = np.ndarray[Any, Any]

#: dtypes that the format has a name for; see the documentation of safetensors.
_NAMED = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "complex64"),
        *("float8_e4m3fn", "float8_e5m2"),
    }
)


#: Limit on the header of a file, as the format has it.
_MOST_HEADER = 100_000_000

_Metadata = Mapping[str, Annotated[str, AsWritten()]]


def dump(
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    *,
    compressed: bool = False,
) -> bytes:
    """Return arrays by name as the bytes of a file; equal arrays give equal bytes.

    Args:
      arrays: by name.
      metadata: texts of the file.
      compressed: whether to compress each array that gets smaller by it.

    Raises:
      OptionError: safetensors is not installed.
    """
    save = _module("safetensors.numpy").save
    stored = {name: _named(array) for name, array in arrays.items()}
    if compressed:
        smaller = {
            name: small
            for name, array in arrays.items()
            if (small := _compressed(array)) is not None
        }
        stored |= smaller
        if smaller:
            metadata = {**(metadata or {}), _COMPRESSED: json.dumps(sorted(smaller))}
    return bytes(save(stored, metadata))


def load(content: bytes, kinds: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """Load the arrays of a file, whose dtypes and shapes are those of ``kinds``.

    Raises:
      GoldenError: the content is no such file, or lacks an array, or one is damaged.
      OptionError: safetensors is not installed.
    """
    module = _module("safetensors")
    try:
        stored = {name: bytes(fields["data"]) for name, fields in module.deserialize(content)}
    except module.SafetensorError as error:
        problem = shown(str(error))[:200]
        raise GoldenError(f"this is no safetensors file, or a part of one: {problem}") from None
    for name in kinds:
        if name not in stored:
            raise GoldenError(f"the array {name!r} is missing in its file")
    compressed = _compressed_names(content)
    arrays: dict[str, Array] = {}
    for name, (text, shape) in kinds.items():
        dtype = dtype_of(text)
        data = stored[name]
        if name in compressed:
            data = _decompressed(name, data, dtype, math.prod(shape))
        arrays[name] = _array(name, data, dtype, shape)
    return arrays


#: The names of the compressed arrays in the metadata of a file, a JSON list.
_COMPRESSED = "pytest-pallas compressed"


def _compressed(array: Array) -> Array | None:
    """Compress an array with zlib, its first bytes first; None if that does not make it smaller.

    Sign and exponent of floats take few values, and compress well apart from the last bits.
    """
    size = array.dtype.itemsize
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, size)
    content = zlib.compress(data.T.tobytes())
    return np.frombuffer(content, np.uint8) if len(content) < array.nbytes else None


def _decompressed(name: str, content: bytes, dtype: np.dtype[Any], count: int) -> bytes:
    """Return the bytes of a compressed array of so many elements.

    Raises:
      GoldenError: the content is damaged, or has another number of bytes, however many.
    """
    size = dtype.itemsize
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(content, count * size + 1)
    except zlib.error as error:
        raise GoldenError(f"the array {name!r} is damaged: {error}") from None
    if len(data) != count * size or not decompressor.eof or decompressor.unused_data:
        raise GoldenError(f"the array {name!r} is damaged: it has not {count * size} bytes")
    return np.frombuffer(data, np.uint8).reshape(size, -1).T.tobytes()


def _compressed_names(content: bytes) -> Sequence[str]:
    text = metadata_of(content).get(_COMPRESSED)
    if text is None:
        return ()
    try:
        return decode(list[str], parse(text))
    except DataError as error:
        raise GoldenError(f"this is no file of arrays: {error}") from None


def metadata_of(content: bytes) -> Mapping[str, str]:
    """Return the metadata of a file.

    Raises:
      GoldenError: the content is no safetensors file.
    """
    length = int.from_bytes(content[:8], "little")
    try:
        if not 0 < length <= min(len(content) - 8, _MOST_HEADER):
            raise DataError(f"its header has {length:,} bytes")
        header: Any = decode(Mapping[str, Any], parse(content[8 : 8 + length]))
        return decode(_Metadata, header.get("__metadata__", {}))
    except DataError as error:
        raise GoldenError(f"this is no safetensors file, or a part of one: {error}") from None


def digest(array: Array) -> str:
    """Return the SHA-256 of an array's dtype, shape and bytes."""
    head = f"{array.dtype.name} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


_DTYPE = re.compile(r"[a-z][a-z0-9_]{1,30}")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of this name.

    Raises:
      GoldenError: there is no such dtype.
    """
    try:
        if _DTYPE.fullmatch(name):
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            # ``np.dtype`` has texts for records, objects and times, too
            if dtype.name == name and (dtype.kind in "biufc" or hasattr(ml_dtypes, name)):
                return dtype
    except (TypeError, ValueError):
        pass
    raise GoldenError(f"there is no dtype {shown(repr(name)[:60])}")


def _named(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    if array.dtype.name in _NAMED:
        return array
    return np.frombuffer(array.tobytes(), np.uint8)


def _array(name: str, content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if math.prod(shape) * dtype.itemsize != len(content):
        raise GoldenError(
            f"the array {name!r} must be {dtype.name}{list(shape)}, but it has {len(content)} bytes"
        )
    try:
        return np.frombuffer(content, dtype).reshape(shape)
    except ValueError as error:  # more dims or elements than numpy has
        raise GoldenError(f"the array {name!r} cannot be {dtype.name}: {error}") from None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise OptionError(
            "goldens are kept as safetensors: pip install 'pytest-pallas[golden]'"
        ) from None


# Values as JSON beside their arrays.


@dataclass
class Written:
    """A value as JSON beside its arrays.

    Attributes:
      plain: JSON; an array is ``{"array": number}``.
      arrays: by that number.
      opaque: the names of what cannot be made from this.
    """

    plain: Any = None
    arrays: list[Array] = field(default_factory=list[Array])
    opaque: list[str] = field(default_factory=list[str])

    @property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        text = json.dumps([self.plain, [digest(array) for array in self.arrays]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def write(value: Any) -> Written:
    """Write a value made of arrays, numbers, strings, dtypes, and containers of those."""
    written = Written()
    written.plain = _plain(value, written)
    return written


def read(plain: Any, arrays: Sequence[Array]) -> Any:
    """Make the value again that ``write`` was given.

    Raises:
      GoldenError: it was written otherwise, or has parts that cannot be made.
    """
    try:
        return _value(plain, arrays)
    except GoldenError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise GoldenError(f"a call that cannot be read: {shown(str(error))[:200]}") from None


def call_of(value: Any) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return a call that was read: positional arguments, options and tuning.

    Raises:
      GoldenError: the value is no call.
    """
    match value:
        case (tuple(args), dict(options), dict(tuning)):
            return args, options, tuning
        case _:
            raise GoldenError("it holds no call")


def _plain(value: Any, written: Written) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return _stored_array(value, written)
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    # A named tuple is another class than the one it would come back as.
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {"tuple": [_plain(item, written) for item in value]}
    if type(value) is list:
        return {"list": [_plain(item, written) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(value[key], written) for key in sorted(value)}}
    name = _name_of(value)
    written.opaque.append(name)
    return {"opaque": name}


def _stored_array(value: Any, written: Written) -> Any:
    number = len(written.arrays)
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        written.arrays.append(np.asarray(jax.random.key_data(value)))
        return {"key": str(jax.random.key_impl(value)), "array": number}
    written.arrays.append(to_numpy(value) if isinstance(value, jax.Array) else np.asarray(value))
    return {"scalar" if isinstance(value, np.generic) else "array": number}


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}.{name}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _value(plain: Any, arrays: Sequence[Array]) -> Any:
    if not isinstance(plain, dict):
        if plain is None or isinstance(plain, (bool, int, float, str)):
            return plain
        raise GoldenError(f"a call holds {type(plain).__name__}, which is never written")
    kind = next(iter(plain), "nothing")
    content: Any = plain.get(kind)
    match kind:
        case "float":
            return float(content)
        case "key":
            return jax.random.wrap_key_data(arrays[plain["array"]], impl=content)
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "dtype":
            return dtype_of(content)
        case "tuple":
            return tuple(_value(item, arrays) for item in content)
        case "list":
            return [_value(item, arrays) for item in content]
        case "dict":
            return {key: _value(item, arrays) for key, item in content.items()}
        case "opaque":
            name = shown(str(content))[:200]
            raise GoldenError(f"{name} is known by its name only, and must be drawn again")
        case _:
            name = shown(repr(kind)[:60])
            raise GoldenError(f"a call holds {name}, which this version does not know")
