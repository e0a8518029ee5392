"""Dropout with the generator of the chip: ``o = x / (1 - p)`` with probability ``1 - p``, else 0.

Shapes: ``x`` and ``o`` are ``(m, n)``, the seed a scalar of int32. Dtypes: float32 or bfloat16.

The mean of ``o`` is x (Srivastava et al., "Dropout: a simple way to prevent neural networks from
overfitting", JMLR 15, 2014, section 10: with the scale at training time). No mask is kept for the
way back: the generator is seeded with the given seed and the number of the block, so the gradient's
kernel, which is the same one on the gradient of ``o``, draws the same mask again. It follows that
the block size is part of the result. ``sample_block`` has no such tie, at a higher price.

``gaussian_dropout`` multiplies with normal numbers of mean 1 and variance ``p / (1 - p)`` in place
of zeros and ``1 / (1 - p)`` (section 10 of the same).

What can be verified depends on where it runs. The portable interpreter has no generator. That of
the TPU interpreter gives zeros (JAX 0.12.0.1), in place of which ``pytest_pallas`` simulates one,
whose numbers are not the chip's. A compiler executes nothing. So the specs compare no random
values: they ask that each element is either 0 or exactly ``x / (1 - p)``, and that the share of
zeros is about p, in every block and for every seed other ones. Means and variances are asked of
more numbers in ``tests/kernels/random``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu
from reference_kernels.random import _plausible


def _dropout_kernel(seed_ref: Any, x_ref: Any, o_ref: Any, *, rate: float) -> None:
    pltpu.prng_seed(seed_ref[0], pl.program_id(0))
    bits = pltpu.bitcast(pltpu.prng_random_bits(x_ref.shape), jnp.uint32)
    # 24 bits, which float32 holds exactly; unsigned numbers would want another comparison.
    keep = (bits >> 8).astype(jnp.int32) < round((1 - rate) * 2**24)
    x = x_ref[...]
    o_ref[...] = jnp.where(keep, _scaled(x, rate), jnp.zeros_like(x))


def _bernoulli_kernel(seed_ref: Any, x_ref: Any, o_ref: Any, *, rate: float) -> None:
    pltpu.prng_seed(seed_ref[0], pl.program_id(0))
    x = x_ref[...]
    keep = pltpu.stateful_bernoulli(1 - rate, shape=x.shape)
    o_ref[...] = jnp.where(keep, _scaled(x, rate), jnp.zeros_like(x))


def _gaussian_kernel(seed_ref: Any, x_ref: Any, o_ref: Any, *, rate: float) -> None:
    pltpu.prng_seed(seed_ref[0], pl.program_id(0))
    noise = pltpu.stateful_normal(shape=x_ref.shape)
    factor = 1 + (rate / (1 - rate)) ** 0.5 * noise
    o_ref[...] = (x_ref[...].astype(jnp.float32) * factor).astype(o_ref.dtype)


def _scaled(x: jax.Array, rate: float) -> jax.Array:
    return (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)


_KERNELS = {"bits": _dropout_kernel, "bernoulli": _bernoulli_kernel}


def dropout(
    x: jax.Array, seed: jax.Array, *, rate: float, sampler: str = "bits", block_rows: int = 256
) -> jax.Array:
    """``x / (1 - rate)`` with probability ``1 - rate``, else 0; differentiable in ``x``.

    Args:
      x: ``(m, n)``, float32 or bfloat16.
      seed: a scalar of int32. The same seed and block size give the same answer on the same chip.
      rate: the probability that an element is dropped, at least 0 and below 1.
      sampler: ``"bits"`` compares random words with a threshold; ``"bernoulli"`` has it done by
        ``stateful_bernoulli``, which makes floats of them first.
      block_rows: rows of a block; a multiple of 8 (bfloat16: 16) for a TPU, or all of them.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or has another dtype, ``seed`` is not a scalar of
        int32, ``rate`` is out of range, ``sampler`` is unknown, or ``block_rows`` is not a positive
        integer.
    """
    _check(x, seed, rate, block_rows)
    if sampler not in _KERNELS:
        raise ValueError(f"sampler must be one of {', '.join(_KERNELS)}, but it is {sampler!r}")
    return _dropout(x, seed, rate, sampler, block_rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _dropout(x: jax.Array, seed: jax.Array, rate: float, sampler: str, rows: int) -> jax.Array:
    return _call(functools.partial(_KERNELS[sampler], rate=rate), x, seed, rows)


def _forward(x: jax.Array, seed: jax.Array, rate: float, sampler: str, rows: int) -> Any:
    return _dropout(x, seed, rate, sampler, rows), seed


def _backward(rate: float, sampler: str, rows: int, seed: jax.Array, gradient: jax.Array) -> Any:
    return _dropout(gradient, seed, rate, sampler, rows), None


_dropout.defvjp(_forward, _backward)


def gaussian_dropout(
    x: jax.Array, seed: jax.Array, *, rate: float, block_rows: int = 256
) -> jax.Array:
    """``x`` times normal numbers of mean 1 and variance ``rate / (1 - rate)``.

    Args:
      x: ``(m, n)``, float32 or bfloat16.
      seed: a scalar of int32.
      rate: at least 0 and below 1.
      block_rows: as for ``dropout``.

    Raises:
      ValueError: as for ``dropout``.
    """
    _check(x, seed, rate, block_rows)
    return _call(functools.partial(_gaussian_kernel, rate=rate), x, seed, block_rows)


def _call(kernel: Any, x: jax.Array, seed: jax.Array, block_rows: int) -> jax.Array:
    m, n = x.shape
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), spec],
        out_specs=spec,
        # The generator of a core is seeded for each block, so any core may do any of them.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(seed.reshape(1), x)


def _check(x: jax.Array, seed: jax.Array, rate: float, block_rows: int) -> None:
    _require.axes("x", x, "m n")
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be of float32 or bfloat16, but its dtype is {x.dtype}")
    if jnp.shape(seed) or jnp.result_type(seed) != jnp.int32:
        raise ValueError(f"seed must be a scalar of int32, but it is {jax.typeof(seed)}")
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and below 1, but it is {rate}")
    _require.positive(block_rows=block_rows)


def filled(
    x: jax.Array, seed: jax.Array, *, rate: float, block_rows: int = 256, **keywords: Any
) -> jax.Array:
    """Dropout with ``x / (1 - rate)`` in place of what was dropped: the same for every mask.

    This is what the spec compares with its reference. It differs from it wherever ``dropout`` gives
    anything but 0 or ``x / (1 - rate)``, and is NaN if the mask cannot be right: too many or too
    few are dropped, or those of another block or of another seed are the same.
    """
    out, other = (
        dropout(x, seed + more, rate=rate, block_rows=block_rows, **keywords) for more in (0, 1)
    )
    kept, known = out != 0, x != 0
    right = _plausible.share(kept, 1 - rate, known)
    right &= _plausible.independent(kept, other != 0, rate, known)
    if (more := min(block_rows, len(x) - block_rows)) > 0:
        blocks = (slice(more), slice(block_rows, block_rows + more))
        one, two = (kept[block] for block in blocks)
        right &= _plausible.independent(one, two, rate, known[blocks[0]] & known[blocks[1]])
    return jnp.where(right, jnp.where(kept, out, _scaled(x, rate)), jnp.nan)


def reference(x: jax.Array, seed: jax.Array, *, rate: float, sampler: str = "bits") -> jax.Array:
    """``x / (1 - rate)``."""
    del seed, sampler
    return x * (1 / (1 - rate))
