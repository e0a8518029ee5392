"""Strategies for dtypes, and the dtypes that values can be made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Older versions of ml_dtypes lack some of these; a name that is missing there is not supported.
_ML_DTYPES = (
    *("int1", "int2", "int4", "uint1", "uint2", "uint4", "bfloat16"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
)


def _supported() -> dict[str, np.dtype[Any]]:
    table = {name: np.dtype(name) for name in _NUMPY}
    for name in _ML_DTYPES:
        if hasattr(ml_dtypes, name):
            table[name] = np.dtype(getattr(ml_dtypes, name))
    return table


#: Every dtype that values can be made for, by name.
SUPPORTED = _supported()


def dtypes(*names: npt.DTypeLike) -> SearchStrategy[np.dtype[Any]]:
    """Return a strategy for one of the dtypes ``names``; failures shrink towards the first of them.

    Each is a name (``"bfloat16"``, ``"float8_e4m3fn"``), a ``numpy.dtype`` or a scalar type such
    as ``jnp.bfloat16``. Draws values of type ``numpy.dtype``.

    Example::

        arrays("m k", dtype=dtypes("float32", "int8"))

    Raises:
      SpecError: no dtype is given, or one of them is not supported.
    """
    if not names:
        raise SpecError("dtypes: give at least one dtype, e.g. dtypes('float32', 'int8')")
    return st.sampled_from([as_dtype(name, "dtypes") for name in names])


def floats(*names: npt.DTypeLike) -> SearchStrategy[np.dtype[Any]]:
    """Return a strategy for floating dtypes, by default float32 and bfloat16.

    float16 must be named, because TPUs do not compute in it.

    Example::

        arrays("m k", dtype=floats())
        arrays("m k", dtype=floats("float16", "float8_e4m3fn"))

    Raises:
      SpecError: one of ``names`` is not a floating dtype, or not supported.
    """
    return _kind("floats", is_float, names or ("float32", "bfloat16"))


def ints(*names: npt.DTypeLike) -> SearchStrategy[np.dtype[Any]]:
    """Return a strategy for integer dtypes, by default int32 and int8.

    Example::

        arrays("m k, k", dtype=(floats(), ints("int8", "int4")))

    Raises:
      SpecError: one of ``names`` is not an integer dtype (bool is none), or not supported.
    """
    return _kind("ints", is_int, names or ("int32", "int8"))


def dtype_pairs(
    *pairs: Sequence[npt.DTypeLike],
) -> SearchStrategy[tuple[np.dtype[Any], ...]]:
    """Return a strategy for dtypes that are drawn together, for kernels of mixed precision.

    Example::

        arrays("m k, k n", dtype=dtype_pairs())  # all pairs of float32 and bfloat16
        arrays("m k, k n", dtype=dtype_pairs(("bfloat16", "int8"), ("float32", "int4")))
        arrays("m k, k n, n", dtype=dtype_pairs(("bfloat16", "int8", "float32")))

    Args:
      pairs: the choices, the simplest first: a dtype for each array. By default the pairs of
        float32 and bfloat16, equal ones first.

    Draws tuples of ``numpy.dtype``.

    Raises:
      SpecError: a dtype is not supported, or the pairs are not all of one length.
    """
    default = [
        ("float32",) * 2,
        ("bfloat16",) * 2,
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
    ]
    choices: list[tuple[np.dtype[Any], ...]] = []
    for pair in pairs or default:
        if isinstance(pair, str) or not isinstance(pair, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(
                f"dtype_pairs: {pair!r} is not a pair of dtypes; give a tuple such as "
                "('bfloat16', 'float32')"
            )
        choices.append(tuple(as_dtype(name, "dtype_pairs") for name in pair))
    if len({len(pair) for pair in choices}) > 1 or not choices[0]:
        raise SpecError(
            "dtype_pairs: every pair must have one dtype for each array, so all pairs must have "
            "the same length"
        )
    return st.sampled_from(choices)


def as_dtype(value: Any, argument: str = "dtype") -> np.dtype[Any]:
    """Return the supported ``numpy.dtype`` of ``value``.

    Raises:
      SpecError: it is not a dtype, or not a supported one; the message names ``argument``.
    """
    dtype: np.dtype[Any] | None = None
    if isinstance(value, str):
        dtype = SUPPORTED.get(value)
    elif value is int or value is float or value is complex:
        # numpy would make 64 bits of them, and JAX 32. ("in" would find np.dtype("float64") too.)
        raise SpecError(
            f"{argument}: Python's {value.__name__} has different widths in numpy and JAX; give a "
            f"name such as '{value.__name__}32'"
        )
    elif value is not None:
        try:
            dtype = SUPPORTED.get(np.dtype(value).name)
        except TypeError:
            dtype = None
    if dtype is None:
        raise SpecError(
            f"{argument}: {value!r} is not a supported dtype; supported: {', '.join(SUPPORTED)}"
        )
    return dtype


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` is a floating dtype, narrow ones included."""
    return dtype.name.startswith(("float", "bfloat"))


def is_int(dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` is an integer dtype, narrow ones included."""
    return dtype.name.startswith(("int", "uint"))


def _kind(function: str, belongs: Any, names: Any) -> SearchStrategy[np.dtype[Any]]:
    for name in names:
        if not belongs(as_dtype(name, function)):
            raise SpecError(
                f"{function}: {name!r} is a dtype of another kind; use dtypes(...) to mix kinds"
            )
    return dtypes(*names)
