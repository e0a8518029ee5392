"""Matrices of random numbers from the generator of the chip: words, uniform or normal floats.

- ``bits``: words of 32 bits, each equally likely.
- ``uniform``: float32 in [0, 1), multiples of 2^-23.
- ``normal``: float32 of mean 0 and variance 1, ``sqrt(2) erfinv(u)`` of a uniform u in (-1, 1);
  never farther from 0 than about 5.4, for u has no more values near 1.

Output: ``(rows, columns)``. The seed is a scalar of int32; with the number of the block it starts
the generator, so blocks are independent and can be made in any order.

``stateful_bits``, ``stateful_uniform`` and ``stateful_normal`` are ``jax.random``'s samplers on the
state that ``prng_seed`` set; each call goes on from there. The numbers are other ones on every
generation of chips. Interpreters of JAX have no such generator (0.12.0.1); ``pytest_pallas``
simulates one in the TPU interpreter. So the spec asks for ranges, and for other numbers in other
blocks and for other seeds; distributions are tested in ``tests/kernels/random``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu
from reference_kernels.random import _plausible

SAMPLERS = {
    "bits": (pltpu.stateful_bits, "uint32"),
    "uniform": (pltpu.stateful_uniform, "float32"),
    "normal": (pltpu.stateful_normal, "float32"),
}


def _noise_kernel(seed_ref: Any, o_ref: Any, *, kind: str) -> None:
    sample, dtype = SAMPLERS[kind]
    pltpu.prng_seed(seed_ref[0], pl.program_id(0))
    o_ref[...] = sample(shape=o_ref.shape, dtype=jnp.dtype(dtype))


def noise(
    seed: jax.Array, *, rows: int, columns: int, kind: str = "uniform", block_rows: int = 256
) -> jax.Array:
    """A matrix of random numbers.

    Args:
      seed: a scalar of int32. The same seed and block size give the same numbers on the same chip.
      rows: number of rows.
      columns: number of columns.
      kind: ``"bits"``, ``"uniform"`` or ``"normal"``.
      block_rows: rows of a block; a multiple of 8 for a TPU, or all of them.

    Returns:
      ``(rows, columns)``, uint32 or float32.

    Raises:
      ValueError: ``seed`` is not a scalar of int32, ``kind`` is unknown, or a size is not a
        positive integer.
    """
    if jnp.shape(seed) or jnp.result_type(seed) != jnp.int32:
        raise ValueError(f"seed must be a scalar of int32, but it is {jax.typeof(seed)}")
    if kind not in SAMPLERS:
        raise ValueError(f"kind must be one of {', '.join(SAMPLERS)}, but it is {kind!r}")
    _require.positive(rows=rows, columns=columns, block_rows=block_rows)
    block = _tpu.fit(block_rows, rows, _tpu.ROWS)
    return pl.pallas_call(
        functools.partial(_noise_kernel, kind=kind),
        out_shape=jax.ShapeDtypeStruct((rows, columns), jnp.dtype(SAMPLERS[kind][1])),
        grid=(pl.cdiv(rows, block),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_specs=pl.BlockSpec((block, columns), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(seed.reshape(1))


def outside(seed: jax.Array, *, kind: str, block_rows: int = 256, **keywords: Any) -> jax.Array:
    """Where the noise is not what ``kind`` may give: nowhere.

    That is, in its range and not the same in the next block or for the next seed. The spec asks for
    this, because the numbers themselves are not specified.
    """
    out, other = (
        noise(seed + more, kind=kind, block_rows=block_rows, **keywords) for more in (0, 1)
    )
    same = _plausible.repeated(out, other)
    if (more := min(block_rows, len(out) - block_rows)) > 0:
        same |= _plausible.repeated(out[:more], out[block_rows : block_rows + more])
    if kind == "bits":  # in units of 2^32: a compiler knows that no word is beyond all words
        out = out.astype(jnp.float32) * 2.0**-32
    low, high = (-6, 6) if kind == "normal" else (0, 1)
    return same | ~((out >= low) & (out <= high))


def reference(seed: jax.Array, *, rows: int, columns: int, kind: str) -> jax.Array:
    """False everywhere."""
    del seed, kind
    return np.zeros((rows, columns), bool)
