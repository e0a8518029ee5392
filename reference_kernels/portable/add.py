"""Sum of two vectors, ``o[i] = x[i] + y[i]``, by one kernel for TPUs and GPUs.

Shapes: ``x``, ``y`` and ``o`` are ``(n,)``. Dtypes: any that ``+`` knows, the same for both.

A program adds one block. It has no memory space, no chip's parameters and no scratch memory in it,
which is what portable means in Pallas: ``pl`` alone. On a GPU Pallas takes it through Triton.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require
from reference_kernels.portable._blocks import padded, require_power_of_two

#: A vector's block on a TPU is a multiple of 1024 elements, or a power of two of 128 words.
_LEAST = 256


def _add_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def portable_add(x: jax.Array, y: jax.Array, *, block: int = 1024) -> jax.Array:
    """``x + y`` for two vectors of any length.

    Args:
      x: ``(n,)``, of any numeric dtype.
      y: ``(n,)``, of the dtype of ``x``.
      block: elements in a block, a power of two of at least 256. A GPU's program adds its block
        with 128 threads: 1024 float32 are two loads of 16 bytes a thread. A TPU wants more.

    Raises:
      ValueError: the operands differ in shape or dtype, are not vectors, or are empty, or
        ``block`` is none that a TPU and a GPU both take.
    """
    (n,) = _require.axes("x", x, "n")
    (y_size,) = _require.axes("y", y, "n")
    _require.same_size("length", ("x", n), ("y", y_size))
    _require.same_dtype(x=x, y=y)
    require_power_of_two(block=block)
    if block < _LEAST:
        raise ValueError(f"block must be at least {_LEAST}, but it is {block}")
    x, y = padded(x, block), padded(y, block)
    spec = pl.BlockSpec((block,), lambda i: (i,))
    out = pl.pallas_call(
        _add_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.size // block,),
        in_specs=[spec, spec],
        out_specs=spec,
    )(x, y)
    return out[:n]


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y``."""
    return jnp.add(x, y)
