"""What the kernels of attention demand of their operands, and attention in jnp."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels import _require
from reference_kernels._tpu import precision_for

#: Segment ids of the queries, ``(..., q_len)``, and of the keys, ``(..., kv_len)``.
SegmentIds = tuple[jax.Array, jax.Array]


def check_qkv(
    q: jax.Array, k: jax.Array, v: jax.Array, *, front: str = "", kv_front: str | None = None
) -> dict[str, int]:
    """The sizes of ``q (q_len, d)``, ``k (kv_len, d)`` and ``v (kv_len, d_v)`` by name.

    Args:
      q: queries.
      k: keys.
      v: values.
      front: names of the leading axes.
      kv_front: names of those of ``k`` and ``v``, if they have others.

    Raises:
      ValueError: a wrong rank, size or dtype.
    """
    kv_front = front if kv_front is None else kv_front
    sizes: dict[str, tuple[str, int]] = {}
    for name, operand, words in (
        ("q", q, f"{front} q_len d"),
        ("k", k, f"{kv_front} kv_len d"),
        ("v", v, f"{kv_front} kv_len d_v"),
    ):
        for word, size in zip(words.split(), _require.axes(name, operand, words), strict=True):
            _require.same_size(word, sizes.setdefault(word, (name, size)), (name, size))
    _require.floating("q", q)
    _require.same_dtype(q=q, k=k, v=v)
    return {word: size for word, (_, size) in sizes.items()}


def check_segment_ids(segment_ids: Any, sizes: dict[str, int], *, front: str = "") -> None:
    """Raise ValueError unless these are two int32 arrays of the ``sizes`` of ``check_qkv``."""
    if not isinstance(segment_ids, tuple) or len(segment_ids) != 2:
        raise ValueError(
            "segment_ids must be a tuple of two arrays, of the queries and of the keys, "
            f"but it is {segment_ids!r}"
        )
    for position, (owner, last) in enumerate((("q", "q_len"), ("k", "kv_len"))):
        name, words, ids = f"segment_ids[{position}]", f"{front} {last}", segment_ids[position]
        for word, size in zip(words.split(), _require.axes(name, ids, words), strict=True):
            _require.same_size(word, (owner, sizes[word]), (name, size))
        if ids.dtype != jnp.int32:
            raise ValueError(f"{name} must be int32, but its dtype is {ids.dtype}")


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    segment_ids: SegmentIds | None = None,
) -> jax.Array:
    """``softmax(scale q k^T) v`` with the whole matrix of scores, for any leading axes."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = factor * jnp.einsum(
        "...qd,...kd->...qk", q, k, precision=precision_for(q.dtype), preferred_element_type=wide
    )
    if causal:
        q_len, kv_len = scores.shape[-2:]
        visible = jnp.tri(q_len, kv_len, kv_len - q_len, dtype=bool)
        scores = jnp.where(visible, scores, -jnp.inf)
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids
        scores = jnp.where(q_ids[..., :, None] == kv_ids[..., None, :], scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    out = jnp.einsum("...qk,...kd->...qd", weights, v.astype(wide), precision=precision_for(wide))
    return out.astype(q.dtype)
