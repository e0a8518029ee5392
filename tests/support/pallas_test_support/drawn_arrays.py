"""Arrays that are drawn from a seed, with the numbers that rules get wrong."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)


def drawn(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """An array of small numbers, many of them equal."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def special(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """An array of floats, a third of them NaN, infinite or zero; of integers for other dtypes."""
    rng = np.random.default_rng(seed)
    if not jnp.issubdtype(dtype, jnp.floating):
        return drawn(shape, dtype, seed)
    values = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), rng.normal(size=shape))
    return values.astype(dtype)
