"""Append keys and values to the pages of their sequences, in place.

Shapes: ``kv_pages (num_pages, page_size, 2 * num_kv_heads, d)``, where key and value of head ``h``
of a token are the rows ``2 h`` and ``2 h + 1``; ``k`` and ``v (tokens, num_kv_heads, d)``, those
of all sequences one after the other; ``kv_lens``, ``page_indices``, ``cu_q_lens`` and ``num_seqs``
as in ``ragged_paged_attention``. Dtypes: any, the same for the three.

The tokens of a sequence are its last ones: token ``r`` of sequence ``s`` stands at the position
``p = kv_lens[s] - cu_q_lens[s + 1] + r``, and goes to row ``p % page_size`` of page
``page_indices[s, p // page_size]``. All other rows keep what they hold.

Where a token goes is worked out before the kernel starts. All that is left to it is a DMA a token,
straight from memory to memory, since the rows of a token are whole tiles of both. They all run at
once: each is started as soon as the core can write its descriptor. The output is the memory of
``kv_pages``, so that a cache of gigabytes is neither copied nor read.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels.attention.ragged_paged_attention import check_lists


def _update_kernel(
    rows_ref: Any, count_ref: Any, new_ref: Any, old_ref: Any, cache_ref: Any, semaphore: Any
) -> None:
    del old_ref  # the memory of cache_ref

    @pl.loop(0, count_ref[0])
    def _start(token: Any) -> None:
        @pl.when(rows_ref[token] >= 0)
        def _copy() -> None:
            pltpu.async_copy(new_ref.at[token], cache_ref.at[rows_ref[token]], semaphore)

    @pl.loop(0, count_ref[0])
    def _wait(token: Any) -> None:
        @pl.when(rows_ref[token] >= 0)
        def _copied() -> None:  # which copy it is does not matter: all have the same size
            pltpu.make_async_copy(new_ref.at[0], cache_ref.at[0], semaphore).wait()


def update_kv_pages(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
) -> jax.Array:
    """``kv_pages`` with the keys and values of new tokens at the ends of their sequences.

    Args:
      kv_pages: the cache, ``(num_pages, page_size, 2 * num_kv_heads, d)``; donate it (with
        ``jax.jit(..., donate_argnums=0)``), or XLA copies it first.
      k: keys of the new tokens, ``(tokens, num_kv_heads, d)``.
      v: their values, like ``k``.
      kv_lens: keys of each sequence with the new ones, int32 ``(max_seqs,)``.
      page_indices: pages of each sequence, int32 ``(max_seqs, pages_per_sequence)``. A page that
        is written to must belong to one sequence, or which one writes last is left to chance.
      cu_q_lens: where the tokens of each sequence start and end, int32 ``(max_seqs + 1,)``.
      num_seqs: int32 ``(1,)``.

    Returns:
      The new cache. Tokens of no sequence, and those whose position is negative or beyond the pages
      of their sequence, are not written.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype.
    """
    num_pages, page_size, rows, d = _require.axes(
        "kv_pages", kv_pages, "num_pages page_size 2*num_kv_heads d"
    )
    tokens, kv_heads, k_d = _require.axes("k", k, "tokens num_kv_heads d")
    _require.same_size("2*num_kv_heads", ("kv_pages", rows), ("k, twice,", 2 * kv_heads))
    _require.same_size("d", ("kv_pages", d), ("k", k_d))
    if k.shape != v.shape:
        raise ValueError(f"v must have the shape of k, {k.shape}, but its shape is {v.shape}")
    _require.same_dtype(kv_pages=kv_pages, k=k, v=v)
    check_lists(kv_lens, page_indices, cu_q_lens, num_seqs)

    to_row = _rows(tokens, page_size, kv_lens, page_indices, cu_q_lens, num_seqs)
    new = jnp.stack([k, v], axis=2).reshape(tokens, rows, d)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    cache = pl.pallas_call(
        _update_kernel,
        out_shape=jax.ShapeDtypeStruct((num_pages * page_size, rows, d), kv_pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(),
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        input_output_aliases={3: 0},  # counted with the prefetched scalars
    )(to_row, cu_q_lens[num_seqs], new, kv_pages.reshape(-1, rows, d))
    return cache.reshape(kv_pages.shape)


def _rows(
    tokens: int,
    page_size: int,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
) -> jax.Array:
    """The row of the cache that each token goes to, or -1."""
    token = jnp.arange(tokens, dtype=jnp.int32)
    max_seqs, pages_each = page_indices.shape
    ends = jnp.where(jnp.arange(max_seqs) < num_seqs[0], cu_q_lens[1:], tokens + 1)
    sequence = jnp.searchsorted(ends, token, side="right")
    belongs = sequence < num_seqs[0]
    sequence = jnp.minimum(sequence, max_seqs - 1)
    position = kv_lens[sequence] - cu_q_lens[sequence + 1] + token
    exists = belongs & (position >= 0) & (position < pages_each * page_size)
    page = page_indices[sequence, jnp.clip(position // page_size, 0, pages_each - 1)]
    return jnp.where(exists, page * page_size + position % page_size, -1).astype(jnp.int32)


def reference(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
) -> jax.Array:
    """The same by a loop over the sequences, each of which writes its rows."""
    num_pages, page_size, _, d = kv_pages.shape
    token = jnp.arange(k.shape[0])
    cache = kv_pages.reshape(num_pages * page_size, -1, 2, d)
    longest = page_indices.shape[1] * page_size
    for s in range(page_indices.shape[0]):
        position = kv_lens[s] - cu_q_lens[s + 1] + token
        mine = (token >= cu_q_lens[s]) & (token < cu_q_lens[s + 1]) & (s < num_seqs[0])
        mine &= (position >= 0) & (position < longest)
        page = page_indices[s][jnp.clip(position, 0, longest - 1) // page_size]
        row = jnp.where(mine, page * page_size + position % page_size, len(cache))
        cache = cache.at[row].set(jnp.stack([k, v], axis=2), mode="drop")
    return cache.reshape(kv_pages.shape)
