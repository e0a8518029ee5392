"""Multi-head attention and its batches: ``flash_attention`` under ``jax.vmap``.

Shapes: ``mha`` takes ``q (h, q_len, d)``, ``k (h, kv_len, d)``, ``v (h, kv_len, d_v)`` and
``batched_mha`` the same with a batch in front, ``(b, h, ...)``. Dtypes as ``flash_attention``.

``vmap`` of a ``pallas_call`` adds a dimension to the front of its grid and of every block, so the
kernel of one head becomes that of ``b h`` heads without a change: the heads are further grid steps,
and the pipeline of copies runs on from one to the next. On a chip with two cores they share the
heads, so the queries of one head stay together (``split_queries=False``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from reference_kernels.attention._operands import SegmentIds, check_qkv, check_segment_ids
from reference_kernels.attention.flash_attention import flash_attention


def mha(q: jax.Array, k: jax.Array, v: jax.Array, **settings: Any) -> jax.Array:
    """Attention of ``h`` heads. It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries, ``(h, q_len, d)``.
      k: keys, ``(h, kv_len, d)``.
      v: values, ``(h, kv_len, d_v)``.
      **settings: ``causal``, ``scale``, ``segment_ids``, ``block_q`` and ``block_kv`` of
        ``flash_attention``, the same for all heads.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    check_qkv(q, k, v, front="h")
    one_head = functools.partial(flash_attention, split_queries=False, **settings)
    return jax.vmap(one_head)(q, k, v)


def batched_mha(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    segment_ids: SegmentIds | None = None,
    **settings: Any,
) -> jax.Array:
    """Attention of ``b`` batches of ``h`` heads. It can be differentiated likewise.

    Args:
      q: queries, ``(b, h, q_len, d)``.
      k: keys, ``(b, h, kv_len, d)``.
      v: values, ``(b, h, kv_len, d_v)``.
      segment_ids: those of ``flash_attention`` for each batch, ``(b, q_len)`` and ``(b, kv_len)``.
      **settings: ``causal``, ``scale``, ``block_q`` and ``block_kv`` of ``flash_attention``.

    Returns:
      ``(b, h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    sizes = check_qkv(q, k, v, front="b h")
    if segment_ids is not None:
        check_segment_ids(segment_ids, sizes, front="b")

    def one_batch(q: jax.Array, k: jax.Array, v: jax.Array, ids: SegmentIds | None) -> jax.Array:
        return mha(q, k, v, segment_ids=ids, **settings)

    return jax.vmap(one_batch)(q, k, v, segment_ids)
