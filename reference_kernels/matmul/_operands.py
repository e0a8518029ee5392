"""What the matrix products have in common: their checks and their reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels import _require
from reference_kernels._mxu import precision_for

Activation = Callable[[Any], Any]


def check_operands(
    x: jax.Array, y: jax.Array, *, transpose_rhs: bool = False, **blocks: int
) -> tuple[int, int, int]:
    """The sizes ``(m, k, n)`` of ``x (m, k)`` and ``y (k, n)`` or, transposed, ``(n, k)``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k = _require.axes("x", x, "m k")
    if transpose_rhs:
        n, y_k = _require.axes("y", y, "n k")
    else:
        y_k, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    _require.floating("x", x)
    _require.same_dtype(x=x, y=y)
    _require.positive(**blocks)
    return m, k, n


def reference(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
) -> jax.Array:
    """``activation(x @ y)``, accumulated in float32 at least and rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = y.T if transpose_rhs else y
    product = jnp.dot(x, y, precision=precision_for(x.dtype), preferred_element_type=wide)
    return (activation(product) if activation else product).astype(x.dtype)
