"""What the matrix products have in common: their checks, their precision and their reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels import _require

#: Multiply float32 operands as float32. The default precision of a TPU would round them to
#: bfloat16 first. It changes nothing for bfloat16 operands, whose products are exact in float32.
HIGHEST = jax.lax.Precision.HIGHEST

Activation = Callable[[Any], Any]


def check_operands(x: jax.Array, y: jax.Array, **blocks: int) -> tuple[int, int, int]:
    """The sizes ``(m, k, n)`` of ``x (m, k)`` and ``y (k, n)``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k = _require.axes("x", x, "m k")
    y_k, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    _require.floating("x", x)
    _require.same_dtype(x=x, y=y)
    _require.positive(**blocks)
    return m, k, n


def reference(x: jax.Array, y: jax.Array, *, activation: Activation | None = None) -> jax.Array:
    """``activation(x @ y)``, accumulated in float32 at least and rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = jnp.dot(x, y, precision=HIGHEST, preferred_element_type=wide)
    return (activation(product) if activation else product).astype(x.dtype)
