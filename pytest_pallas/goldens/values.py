"""Calls as JSON and arrays, without pickles, and back again without executing anything.

What is none of the kinds below (a function, a mask object) is written as ``opaque``, by name: such
a call is told from others, and has to be drawn again to be made.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.decoding import shown
from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.tensors import Array, digest, dtype_of


@dataclass
class Written:
    """A value as JSON beside its arrays.

    Attributes:
      plain: JSON; an array is ``{"array": number}``.
      arrays: by that number.
      opaque: what cannot be made from this, in words.
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
    """A value made of arrays, numbers, strings, dtypes, and containers of those."""
    written = Written()
    written.plain = _plain(value, written)
    return written


def read(plain: Any, arrays: Sequence[Array]) -> Any:
    """The value that ``write`` was given.

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
    """A call that was read: positional arguments, options and tuning.

    Raises:
      GoldenError: it is none.
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
        return _array(value, written)
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    # A named tuple is another class than the one it would come back as.
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {"tuple": [_plain(each, written) for each in value]}
    if type(value) is list:
        return {"list": [_plain(each, written) for each in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(value[key], written) for key in sorted(value)}}
    words = _words(value)
    written.opaque.append(words)
    return {"opaque": words}


def _array(value: Any, written: Written) -> Any:
    number = len(written.arrays)
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        written.arrays.append(np.asarray(jax.random.key_data(value)))
        return {"key": str(jax.random.key_impl(value)), "array": number}
    written.arrays.append(to_numpy(value) if isinstance(value, jax.Array) else np.asarray(value))
    return {"scalar" if isinstance(value, np.generic) else "array": number}


def _words(value: Any) -> str:
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
            return tuple(_value(each, arrays) for each in content)
        case "list":
            return [_value(each, arrays) for each in content]
        case "dict":
            return {key: _value(each, arrays) for key, each in content.items()}
        case "opaque":
            words = shown(str(content))[:200]
            raise GoldenError(f"{words} is known by its name only, and must be drawn again")
        case _:
            words = shown(repr(kind)[:60])
            raise GoldenError(f"a call holds {words}, which this version does not know")
