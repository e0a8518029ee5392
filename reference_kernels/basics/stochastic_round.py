"""Stochastic rounding of float32 to bfloat16: up or down at random, so that it is right on average.

With the two neighbors ``a <= x <= b`` of x among the bfloat16 numbers, ``o`` is b with probability
``(x - a) / (b - a)`` and a otherwise, so its mean is x. Sums of many small terms and weights that
are updated by little survive in 16 bits like that (Gupta et al., "Deep Learning with Limited
Numerical Precision", 2015, arXiv:1502.02551). The random bits come from outside: the same bits give
the same answer.

Shapes: ``x``, ``bits`` and ``o`` are ``(m, n)``. Dtypes: float32, uint32, bfloat16.

A bfloat16 is the upper half of a float32. ``stochastic_round_by_hand`` adds 16 random bits to the
lower half, whose carry is the rounding, and cuts it off; it runs wherever Pallas does. An infinity
stays one, because no carry leaves its zeros, and a NaN is taken care of. ``stochastic_round`` is
the chip's own operation; which of the bits it uses is not documented, so for the same bits the two
may differ, though only by which neighbor they choose.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu


def _round_kernel(x_ref: Any, bits_ref: Any, o_ref: Any) -> None:
    o_ref[...] = pltpu.stochastic_round(x_ref[...], bits_ref[...], target_dtype=o_ref.dtype)


def _by_hand_kernel(x_ref: Any, bits_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    word = pltpu.bitcast(x, jnp.uint32)
    rounded = (word + (bits_ref[...] & 0xFFFF)) & jnp.uint32(0xFFFF0000)
    # What is left fits into bfloat16, so the conversion rounds nothing.
    rounded = pltpu.bitcast(rounded, jnp.float32)
    o_ref[...] = jnp.where(jnp.isnan(x), x, rounded).astype(jnp.bfloat16)


def stochastic_round(x: jax.Array, bits: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``x`` as bfloat16, rounded up or down by ``bits``, with the instruction of the chip.

    Args:
      x: ``(m, n)``, float32.
      bits: ``(m, n)``, uint32, random.
      block_rows: rows of a block; a multiple of 16 for a TPU, or all of them.

    Raises:
      ValueError: an operand is not a matrix, is empty, has another dtype or another shape than the
        other, or ``block_rows`` is not a positive integer.
    """
    return _call(_round_kernel, x, bits, block_rows)


def stochastic_round_by_hand(x: jax.Array, bits: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``stochastic_round`` in operations of integers: the lower 16 of ``bits`` are used."""
    return _call(_by_hand_kernel, x, bits, block_rows)


def _call(kernel: Any, x: jax.Array, bits: jax.Array, block_rows: int) -> jax.Array:
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be of float32, but its dtype is {x.dtype}")
    if bits.shape != (m, n) or bits.dtype != jnp.uint32:
        raise ValueError(f"bits must be of uint32 and {(m, n)}, but it is {jax.typeof(bits)}")
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        grid=(pl.cdiv(m, block),),
        in_specs=[spec, spec],
        out_specs=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, bits)


def reference(x: jax.Array, bits: jax.Array) -> jax.Array:
    """The neighbor away from 0 where the fraction of the way there and the bits carry over."""
    x = x.astype(jnp.float32)
    mantissa, exponent = jnp.frexp(jnp.abs(x))
    # Units of the last place of bfloat16, of 8 bits: the fraction is a multiple of 2^-16.
    scaled = jnp.ldexp(mantissa, 8)
    below = jnp.floor(scaled)
    threshold = (bits & 0xFFFF).astype(jnp.float32) / 2**16
    above = below + ((scaled - below) + threshold >= 1)
    return jnp.copysign(jnp.ldexp(above, exponent - 8), x).astype(jnp.bfloat16)
