"""Values of simulated programs: numpy arrays, typed PRNG keys, and references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.compat.keys import is_key, key_implementation, key_shape


@dataclass(frozen=True, eq=False)
class KeyArray:
    """An array of typed PRNG keys.

    Attributes:
      data: the words of the keys, uint32[..., words].
      dtype: JAX's dtype, such as ``key<fry>``.
    """

    data: np.ndarray[Any, Any]
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array of keys."""
        words = key_shape(self.dtype)
        return self.data.shape[: self.data.ndim - len(words)]

    @property
    def ndim(self) -> int:
        """Of the array of keys."""
        return len(self.shape)


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype is that of typed PRNG keys."""
    return not isinstance(dtype, np.dtype) and is_key(dtype)


def from_jax(value: Any, aval: Any = None) -> Any:
    """A constant, literal or argument of JAX as a value of the simulator.

    Args:
      value: an array, a number, typed keys, or what is passed on as it is.
      aval: its abstract value, where its own type does not say the dtype.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        dtype = getattr(value, "dtype", None)
    if dtype is None:
        return np.asarray(value) if isinstance(value, (bool, int, float, complex)) else value
    if is_key_dtype(dtype):
        if isinstance(value, KeyArray):
            return value
        import jax

        return KeyArray(np.asarray(jax.random.key_data(value)), dtype)
    if not isinstance(dtype, np.dtype):
        return value
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    return np.asarray(value, dtype)


def to_output(value: Any) -> Any:
    """A value as an array that is returned to the caller: of typed keys the words."""
    return value.data if isinstance(value, KeyArray) else np.asarray(value)


def to_jax(value: Any) -> Any:
    """A value as JAX takes it: typed keys as such, and numpy arrays."""
    if isinstance(value, KeyArray):
        import jax

        words = jax.numpy.asarray(value.data)
        return jax.random.wrap_key_data(words, impl=key_implementation(value.dtype))
    return np.asarray(value)
