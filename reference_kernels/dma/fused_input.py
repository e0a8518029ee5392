"""``o = x y + 1`` where XLA computes ``x y`` as the kernel fetches it.

Shapes: ``x``, ``y`` and ``o`` are ``(m, n)``. Dtypes: float32 or bfloat16.

The kernel only adds one. Its operand ``x y`` is made by XLA before it, which writes it to HBM and
reads it back: three trips instead of one. With ``allow_input_fusion`` XLA may put what makes an
operand into the kernel's own fetch: the blocks of ``x`` and ``y`` come into VMEM, and their product
is the block that the kernel sees. That is worth it for what is cheap to compute block by block (a
cast, a scale, a mask), since a block that is fetched twice is computed twice.

It takes ``jax.jit`` around the whole, or there is nothing to fuse, and an operand in blocks: one in
HBM, which the kernel copies itself, is refused ("Can't handle fusions into operands without an
assigned memory space", JAX 0.12.0.1).
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, ROWS, fit


def _add_one_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def multiply_add_one(
    x: jax.Array, y: jax.Array, *, block: tuple[int, int] = (256, 512), fused: bool = True
) -> jax.Array:
    """``x * y + 1``, with the product inside the kernel's fetch under ``jax.jit``.

    Args:
      x: ``(m, n)``, float32 or bfloat16. The product is rounded to its dtype.
      y: of the shape and dtype of ``x``.
      block: rows and columns of a block.
      fused: let XLA fuse the product; otherwise it is written to HBM first.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, n = _require.axes("x", x, "m n")
    y_m, y_n = _require.axes("y", y, "m n")
    _require.same_size("m", ("x", m), ("y", y_m))
    _require.same_size("n", ("x", n), ("y", y_n))
    _require.floating("x", x)
    _require.same_dtype(x=x, y=y)
    rows, columns = _require.pair("block", block)
    rows, columns = fit(rows, m, ROWS), fit(columns, n, LANES)
    spec = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    return pl.pallas_call(
        _add_one_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), allow_input_fusion=(fused,)
        ),
    )(x * y)


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x * y + 1``."""
    return x * y + 1
