"""Product of quantized matrices: ``o[i, j] = s_i t_j sum_k x[i, k] w[k, j]``.

Shapes: ``x (m, k)``, ``w (k, n)``, the scales ``s (m,)`` and ``t (n,)``, ``o (m, n)``. Dtypes: int8
by int8 or int4, or float8_e4m3fn and float8_e5m2 by each other; scales and ``o`` float32 or
bfloat16.

A scale for each row of the activations and one for each column of the weights (Dettmers et al.,
"LLM.int8()", 2022, arXiv:2208.07339) do not depend on ``k``, so they leave the sum: the matrix unit
multiplies the narrow numbers as they are, and the scales are applied once, to the finished sums.
Those are int32 for integers, which is exact, and float32 for float8.

Which dtypes a matrix unit multiplies differs from chip to chip. Integers of 8 bits it does on v5e
to v6e, but not on v4 and tpu7x. float8 the compiler takes from v5e on; where the unit has another
float8 than float8_e4m3fn, its own conversion is much shorter than widening both blocks here. The
rest is widened in VMEM, after it was fetched, so it still saves the bandwidth: int4 to int8 where
there is int8, and everything else to bfloat16, which holds each of these numbers exactly. Products
of int8 are integers up to 2**14; in float32 1024 of them add up exactly, so there a block of ``k``
is not longer, and the sums of blocks are still added in int32.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, fit

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
PAIRS = (("int8", "int8"), ("int8", "int4"), *((x, w) for x in _FLOAT8 for w in _FLOAT8))

#: Rows of a whole tile of 8-bit elements.
_ROWS = 32

#: Products of int8 whose sum is exact in float32: 2**24 / 2**14.
_EXACT_TERMS = 1024


def _factor_dtype(x: Any) -> Any:
    """The dtype in which this chip multiplies numbers of dtype ``x``, or None: as they are."""
    same = jnp.int8 if jnp.issubdtype(x, jnp.integer) else None
    try:
        chip = pltpu.get_tpu_info()
    except ValueError:  # An interpreter, and nobody has said for which chip.
        return same
    native = chip.generation > 4 if same is None else chip.is_matmul_supported(same, same)
    return same if native else jnp.bfloat16


def _matmul_kernel(
    x_ref: Any,
    w_ref: Any,
    x_scale_ref: Any,
    w_scale_ref: Any,
    o_ref: Any,
    acc_ref: Any,
    *,
    length: int,
    factor: Any,
) -> None:
    step, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x, w = x_ref[...], w_ref[...]
    block = x.shape[1]
    if length % block:
        left = length - step * block
        x = _first(left, x, 1)
        if not jnp.issubdtype(w.dtype, jnp.integer):  # zero times NaN is NaN
            w = _first(left, w, 0)
    if factor is not None:
        x, w = x.astype(factor), w.astype(factor)
    wide = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
    acc_ref[...] += jnp.dot(x, w, preferred_element_type=wide).astype(acc_ref.dtype)

    @pl.when(step == last)
    def _scale() -> None:
        total = acc_ref[...].astype(jnp.float32) * x_scale_ref[...].astype(jnp.float32)
        o_ref[...] = (total * w_scale_ref[...].astype(jnp.float32)).astype(o_ref.dtype)


def _first(count: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros after the first ``count`` elements along ``axis``."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < count
    wide = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
    return jnp.where(inside, x.astype(wide), 0).astype(x.dtype)


def matmul_quantized(
    x: jax.Array,
    w: jax.Array,
    x_scale: jax.Array,
    w_scale: jax.Array,
    *,
    block_m: int = 512,
    block_n: int = 512,
    block_k: int = 2048,
) -> jax.Array:
    """``(x_scale[:, None] * x) @ (w * w_scale)`` of quantized ``x`` and ``w``.

    Args:
      x: ``(m, k)``, int8, float8_e4m3fn or float8_e5m2.
      w: ``(k, n)``: int8 or int4 if ``x`` is int8, otherwise float8_e4m3fn or float8_e5m2.
      x_scale: ``(m,)``, float32 or bfloat16.
      w_scale: ``(n,)``, of the dtype of ``x_scale``.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` a program contracts; of integers at most 1024 on a chip whose
        matrix unit does not multiply them.

    Returns:
      ``(m, n)``, of the dtype of the scales.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k, n = _checked(x, w, x_scale, w_scale)
    _require.positive(block_m=block_m, block_n=block_n, block_k=block_k)
    integers = jnp.issubdtype(x.dtype, jnp.integer)
    factor = _factor_dtype(x.dtype)
    if integers and factor == jnp.bfloat16:
        block_k = min(block_k, _EXACT_TERMS)
    block_m, block_n = fit(block_m, m, _ROWS), fit(block_n, n, LANES)
    block_k = fit(block_k, k, LANES)
    return pl.pallas_call(
        functools.partial(_matmul_kernel, length=k, factor=factor),
        out_shape=jax.ShapeDtypeStruct((m, n), x_scale.dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
            pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
            pl.BlockSpec((block_m, 1), lambda i, j, step: (i, 0)),
            pl.BlockSpec((1, block_n), lambda i, j, step: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.int32 if integers else jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, w, x_scale.reshape(m, 1), w_scale.reshape(1, n))


def _checked(
    x: jax.Array, w: jax.Array, x_scale: jax.Array, w_scale: jax.Array
) -> tuple[int, int, int]:
    """The sizes ``(m, k, n)``."""
    m, k = _require.axes("x", x, "m k")
    w_k, n = _require.axes("w", w, "k n")
    _require.same_size("k", ("x", k), ("w", w_k))
    if (x.dtype.name, w.dtype.name) not in PAIRS:
        raise ValueError(
            "x and w must be int8 and int8 or int4, or both of "
            f"{' or '.join(_FLOAT8)}, but their dtypes are {x.dtype} and {w.dtype}"
        )
    (rows,) = _require.axes("x_scale", x_scale, "m")
    (columns,) = _require.axes("w_scale", w_scale, "n")
    _require.same_size("m", ("x", m), ("x_scale", rows))
    _require.same_size("n", ("w", n), ("w_scale", columns))
    _require.floating("x_scale", x_scale)
    _require.same_dtype(x_scale=x_scale, w_scale=w_scale)
    return m, k, n


def reference(x: jax.Array, w: jax.Array, x_scale: jax.Array, w_scale: jax.Array) -> jax.Array:
    """Dequantize both, then multiply, in float32 at least."""
    wide = jnp.promote_types(x_scale.dtype, jnp.float32)
    rows = x.astype(wide) * x_scale.astype(wide)[:, None]
    columns = w.astype(wide) * w_scale.astype(wide)
    product = jnp.dot(rows, columns, precision=jax.lax.Precision.HIGHEST)
    return product.astype(x_scale.dtype)
