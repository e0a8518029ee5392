"""The precision of a product on the matrix unit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def precision_for(dtype: Any) -> jax.lax.Precision:
    """The precision that multiplies operands of ``dtype`` without rounding them first.

    By default a TPU rounds float32 operands to bfloat16, so those need ``HIGHEST``. Products of
    bfloat16 are exact in float32 as they are, and Mosaic refuses ``HIGHEST`` for them ("Bad lhs
    type", JAX 0.12.0.1).
    """
    wide = jnp.dtype(dtype).itemsize >= 4
    return jax.lax.Precision.HIGHEST if wide else jax.lax.Precision.DEFAULT
