"""Flash attention, ``o = softmax(scale q k^T) v``, by one kernel for TPUs and GPUs.

Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022
(arXiv:2205.14135), with one program for a block of queries, as in FlashAttention-2 (Dao, 2023,
arXiv:2307.08691).

Shapes: ``q (q_len, d)``, ``k (kv_len, d)``, ``v (kv_len, d_v)``, ``o (q_len, d_v)``. Dtypes:
float32, bfloat16 or float16, alike; scores and sums are float32.

The loop over the keys is in the program, whose running maximum, sum and output are values that it
carries: nothing is kept between the steps of a grid, which run at the same time on a GPU. Keys and
values are blocks as long as there are keys; a TPU copies them to VMEM whole, which bounds
``kv_len``, and a GPU loads ``block_kv`` of them at a time. A causal program ends its loop at the
last key that its last query sees.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels.attention._operands import check_qkv
from reference_kernels.portable._blocks import (
    LEAST_COLUMNS,
    largest_that_fits,
    padded,
    power_of_two,
    product,
    require_power_of_two,
)


def _attention_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    o_ref: Any,
    *,
    q_len: int,
    kv_len: int,
    block_kv: int,
    causal: bool,
    scale: float,
) -> None:
    block_q, width = o_ref.shape
    first = pl.program_id(0) * block_q
    last_seen = kv_len - q_len + first + block_q  # by the block's last query, and one more
    ahead = kv_len - q_len  # keys that the first query sees besides its own
    q = q_ref[...]

    def step(j: Any, carried: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, out = carried
        here = pl.ds(pl.multiple_of(j * block_kv, block_kv), block_kv)
        scores = scale * product(q, k_ref[here, :].T)
        keys = j * block_kv + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        visible = keys < kv_len
        if causal:
            queries = first + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            visible &= keys <= queries + ahead
        scores = jnp.where(visible, scores, -jnp.inf)
        higher = jnp.maximum(top, jnp.max(scores, axis=1))
        # A row that has seen nothing yet has the maximum -inf, and -inf - -inf is NaN.
        shift = jnp.where(higher == -jnp.inf, 0.0, higher)
        weights = jnp.exp(scores - shift[:, None])
        rescale = jnp.exp(top - shift)
        v = v_ref[here, :]
        out = rescale[:, None] * out + product(weights.astype(v.dtype), v)
        return higher, rescale * total + jnp.sum(weights, axis=1), out

    nothing = (
        jnp.full((block_q,), -jnp.inf, jnp.float32),
        jnp.zeros((block_q,), jnp.float32),
        jnp.zeros((block_q, width), jnp.float32),
    )
    steps = k_ref.shape[0] // block_kv
    if causal:
        steps = jnp.clip(pl.cdiv(last_seen, block_kv), 0, steps)
    _, total, out = jax.lax.fori_loop(0, steps, step, nothing)
    o_ref[...] = (out / jnp.where(total == 0.0, 1.0, total)[:, None]).astype(o_ref.dtype)


def largest_block_kv(block_q: int, d: int, d_v: int, itemsize: int) -> int:
    """The most keys of a block, up to 128, for which every GPU has the shared memory.

    Args:
      block_q: queries of a block.
      d: elements of a query, before padding.
      d_v: elements of a value, likewise.
      itemsize: bytes of an element.
    """
    d, d_v = power_of_two(d, LEAST_COLUMNS), power_of_two(d_v, LEAST_COLUMNS)
    return largest_that_fits(
        128, lambda keys: keys * (d + d_v), lambda keys: block_q * (d + keys), itemsize
    )


def portable_flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 64,
    block_kv: int | None = None,
) -> jax.Array:
    """Attention of one head.

    Args:
      q: ``(q_len, d)``, floating.
      k: ``(kv_len, d)``, of the dtype of ``q``.
      v: ``(kv_len, d_v)``, of the dtype of ``q``.
      causal: whether query ``i`` sees the keys up to ``i + kv_len - q_len`` only.
      scale: of the scores, by default ``1 / sqrt(d)``.
      block_q: queries in a block, a power of two of at least 16.
      block_kv: keys that are multiplied at once, likewise; by default ``largest_block_kv``.

    Returns:
      ``(q_len, d_v)``; zeros for queries that see no key.

    Raises:
      ValueError: a wrong rank, size, dtype or block.
    """
    sizes = check_qkv(q, k, v)
    if block_kv is None:
        block_kv = largest_block_kv(block_q, sizes["d"], sizes["d_v"], q.dtype.itemsize)
    require_power_of_two(block_q=block_q, block_kv=block_kv)
    d, d_v = (power_of_two(sizes[name], LEAST_COLUMNS) for name in ("d", "d_v"))
    kernel = functools.partial(
        _attention_kernel,
        q_len=sizes["q_len"],
        kv_len=sizes["kv_len"],
        block_kv=block_kv,
        causal=causal,
        scale=sizes["d"] ** -0.5 if scale is None else scale,
    )
    q, k, v = padded(q, block_q, d), padded(k, block_kv, d), padded(v, block_kv, d_v)
    whole = [pl.BlockSpec(operand.shape, lambda i: (0, 0)) for operand in (k, v)]
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((q.shape[0], d_v), q.dtype),
        grid=(q.shape[0] // block_q,),
        in_specs=[pl.BlockSpec((block_q, d), lambda i: (i, 0)), *whole],
        out_specs=pl.BlockSpec((block_q, d_v), lambda i: (i, 0)),
    )(q, k, v)
    return out[: sizes["q_len"], : sizes["d_v"]]
