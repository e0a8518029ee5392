"""Sum of two vectors, ``o[i] = x[i] + y[i]``: whole arrays, and in blocks over a grid.

Shapes: ``x``, ``y`` and ``o`` are ``(n,)``. Dtypes: any that ``+`` knows, the same for both.

``add_vectors`` has no grid: both vectors are copied to VMEM at once, which is right for what fits.
``add_blocks`` walks a grid of ``cdiv(n, block)`` programs, and Pallas copies the next block in and
the last one out while a block is being added. The last block may reach beyond ``n``: what is read
there is not specified, and what is written there is dropped, so nothing needs a mask.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _add_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def add_vectors(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y`` for two vectors that fit in VMEM together with their sum.

    Args:
      x: ``(n,)``, of any numeric dtype.
      y: ``(n,)``, of the dtype of ``x``.

    Raises:
      ValueError: the operands differ in shape or dtype, are not vectors, or are empty.
    """
    n = _check(x, y)
    return pl.pallas_call(_add_kernel, out_shape=jax.ShapeDtypeStruct((n,), x.dtype))(x, y)


def add_blocks(x: jax.Array, y: jax.Array, *, block: int = 65536) -> jax.Array:
    """``x + y`` for two vectors of any length, ``block`` elements at a time.

    Args:
      x: ``(n,)``, of any numeric dtype.
      y: ``(n,)``, of the dtype of ``x``.
      block: elements in a block. A TPU wants a power of two of at least 128 32-bit words or a
        multiple of 1024. The default is 256 kB of float32: large enough to hide the cost of a grid
        step (about 0.35 us), while two buffers for each of the three vectors take 1.5 MB of VMEM.

    Raises:
      ValueError: as ``add_vectors``, or ``block`` is not a positive integer.
    """
    n = _check(x, y)
    _require.positive(block=block)
    block = min(block, n)
    spec = pl.BlockSpec((block,), lambda i: (i,))
    return pl.pallas_call(
        _add_kernel,
        out_shape=jax.ShapeDtypeStruct((n,), x.dtype),
        grid=(pl.cdiv(n, block),),
        in_specs=[spec, spec],
        out_specs=spec,
        # No block depends on another, so the cores of a chip may share the grid.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)


def _check(x: jax.Array, y: jax.Array) -> int:
    (n,) = _require.axes("x", x, "n")
    (y_size,) = _require.axes("y", y, "n")
    _require.same_size("length", ("x", n), ("y", y_size))
    _require.same_dtype(x=x, y=y)
    return n


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y``."""
    return jnp.add(x, y)
