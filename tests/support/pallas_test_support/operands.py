"""Operands for tests of reference kernels, and what a wrapper says of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def f32(*shape: int) -> Any:
    """Zeros, float32."""
    return np.zeros(shape, np.float32)


def i32(*shape: int) -> Any:
    """Zeros, int32."""
    return np.zeros(shape, np.int32)


def normal(*shape: int) -> jax.Array:
    """Unit normal, float32; the same at each call."""
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def refuses(call: Callable[[], Any], *words: str) -> None:
    """``call`` raises ValueError, and the message has all of ``words``."""
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
