"""The usual test of a kernel: one square power of two, normal data, a fixed tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

SIZE = 256


def agrees(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    count: int = 1,
    dtype: Any = jnp.float32,
) -> None:
    """Compare on ``count`` arrays (256, 256) under the portable interpreter.

    Raises:
      AssertionError: the answers differ by more than 1e-2 (2e-2 in bfloat16), relative and
        absolute.
    """
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal((SIZE, SIZE)), dtype) for _ in range(count)]
    with pltpu.force_tpu_interpret_mode(True):
        actual = jax.jit(kernel)(*args)
    tolerance = 2e-2 if dtype == jnp.bfloat16 else 1e-2
    np.testing.assert_allclose(
        np.asarray(actual, np.float64),
        np.asarray(reference(*args), np.float64),
        rtol=tolerance,
        atol=tolerance,
    )
