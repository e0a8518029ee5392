"""Multi-query and grouped-query attention: heads of queries share heads of keys and values.

Shapes: ``q (b, h, q_len, d)``, ``k (b, g, kv_len, d)``, ``v (b, g, kv_len, d_v)`` and
``o (b, h, q_len, d_v)``, where ``g`` divides ``h``: head ``i`` of the queries reads head
``i // (h / g)`` of the keys. ``g = 1`` is multi-query attention, ``g = h`` multi-head attention.
Dtypes as ``flash_attention``.

Sources: Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need", 2019
(arXiv:1911.02150); Ainslie et al., "GQA", 2023 (arXiv:2305.13245).

Nothing is repeated in memory. There are two ways to say that:

- ``grouped_query_attention`` puts the heads into the grid, and the index map of the keys divides:
  program ``(i, ...)`` asks for head ``i // (h / g)``. Batch and heads are one axis, because
  ``(n h + i) // (h / g) = n g + i // (h / g)``, and ``pl.squeezed`` takes it off the blocks, so the
  kernel is that of one head.
- ``grouped_query_attention_by_vmap`` is ``flash_attention`` under ``jax.vmap``, with
  ``in_axes=None`` for keys and values. An operand that is not mapped gets an index map that ignores
  the new axis.

Forward, both copy the same blocks. Backward, the first one adds up ``dk`` and ``dv`` of a group in
VMEM, because its heads follow each other in the grid. The second one writes them for each head, and
the transpose of ``vmap`` adds them up in HBM.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels.attention import _operands
from reference_kernels.attention._operands import SegmentIds, check_qkv, check_segment_ids
from reference_kernels.attention.flash_attention import (
    Settings,
    attend,
    blocks_for,
    flash_attention,
)


def grouped_query_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    segment_ids: SegmentIds | None = None,
    block_q: int = 512,
    block_kv: int = 512,
) -> jax.Array:
    """Attention of ``h`` heads of queries to ``g`` heads of keys, in ``b`` batches.

    It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries, ``(b, h, q_len, d)``, float32 or bfloat16.
      k: keys, ``(b, g, kv_len, d)``; ``g`` divides ``h``.
      v: values, ``(b, g, kv_len, d_v)``.
      causal: query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores; ``d ** -0.5`` by default.
      segment_ids: int32 of shape ``(b, q_len)`` and ``(b, kv_len)``; a query sees the keys whose
        id is its own, in every head.
      block_q: queries in a block.
      block_kv: keys in a block.

    Returns:
      ``(b, h, q_len, d_v)``, of the dtype of ``q``; zero for a query that sees no key.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``g`` does not divide ``h``, or a
        block size is not positive.
    """
    sizes = _check(q, k, v)
    if segment_ids is not None:
        check_segment_ids(segment_ids, sizes, front="b")
    settings = Settings(
        blocks=blocks_for(sizes, causal=causal, block_q=block_q, block_kv=block_kv),
        scale=sizes["d"] ** -0.5 if scale is None else scale,
        split_queries=False,  # there are heads enough for all cores
    )
    heads = (jnp.reshape(x, (-1, *x.shape[2:])) for x in (q, k, v))
    return attend(*heads, segment_ids, settings).reshape(*q.shape[:3], -1)


def grouped_query_attention_by_vmap(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    segment_ids: SegmentIds | None = None,
    **settings: Any,
) -> jax.Array:
    """The same function as ``grouped_query_attention`` by ``jax.vmap`` of ``flash_attention``."""
    sizes = _check(q, k, v)
    if segment_ids is not None:
        check_segment_ids(segment_ids, sizes, front="b")

    def one_head(q: jax.Array, k: jax.Array, v: jax.Array, ids: SegmentIds | None) -> jax.Array:
        return flash_attention(q, k, v, segment_ids=ids, split_queries=False, **settings)

    heads_of_group = jax.vmap(one_head, in_axes=(0, None, None, None))
    groups = jax.vmap(heads_of_group, in_axes=(0, 0, 0, None))
    batches = jax.vmap(groups)
    grouped = jnp.reshape(q, (sizes["b"], sizes["g"], -1, *q.shape[2:]))
    return batches(grouped, k, v, segment_ids).reshape(*q.shape[:3], -1)


def mqa(q: jax.Array, k: jax.Array, v: jax.Array, **settings: Any) -> jax.Array:
    """Attention of ``h`` heads of queries to a single head of keys.

    Args:
      q: queries, ``(h, q_len, d)``.
      k: keys, ``(kv_len, d)``.
      v: values, ``(kv_len, d_v)``.
      **settings: ``causal``, ``scale``, ``block_q`` and ``block_kv`` of ``flash_attention``.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    check_qkv(q, k, v, front="h", kv_front="")
    return grouped_query_attention(q[None], k[None, None], v[None, None], **settings)[0]


def _check(q: jax.Array, k: jax.Array, v: jax.Array) -> dict[str, int]:
    sizes = check_qkv(q, k, v, front="b h", kv_front="b g")
    if sizes["h"] % sizes["g"]:
        raise ValueError(
            f"k must have a number of heads g that divides the h of q, {sizes['h']}, "
            f"but its g is {sizes['g']}"
        )
    return sizes


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    segment_ids: SegmentIds | None = None,
) -> jax.Array:
    """Attention with the keys and values of each group repeated."""
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    ids = None if segment_ids is None else (segment_ids[0][:, None], segment_ids[1][:, None])
    return _operands.reference(q, k, v, causal=causal, scale=scale, segment_ids=ids)


def mqa_reference(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = False) -> jax.Array:
    """Attention of many heads of queries to one of keys and values."""
    return _operands.reference(q, k[None], v[None], causal=causal)
