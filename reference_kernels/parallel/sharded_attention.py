"""Attention on several devices by the kernel of a single one: batch, heads, queries.

Shapes: ``q (b, h, q_len, d)``, ``k (b, g, kv_len, d)``, ``v (b, g, kv_len, d_v)`` and
``o (b, h, q_len, d_v)``, where ``g`` divides ``h`` as in ``grouped_query``. Dtypes: float32 or
bfloat16, the same for all.

``jax.shard_map`` gives each device its part of the arrays, and the kernel runs on that as on any
array. There are three ways to divide, one for each axis of the mesh:

- data parallel: the batch is divided. Nothing is sent.
- tensor parallel: the heads are divided. A head needs nothing of another one, so nothing is sent;
  device ``i`` has the same part of ``h`` as of ``g``, so groups of heads stay together.
- sequence parallel: the queries are divided, and so are keys and values, which every device gathers
  before it computes. It receives ``(p - 1) / p`` of them, which is the least if each device is to
  see all keys, but they need memory as a whole, and nothing is computed meanwhile.
  ``ring_attention`` does without both.

The causal mask of the kernel is aligned at the bottom right: its last query sees its last key. So
device ``i`` of ``p``, whose queries end at ``(i + 1) q_len / p``, gives the kernel the keys up to
``kv_len - q_len + (i + 1) q_len / p``, and the mask is right without a word about offsets; keys
that no query of the device sees are not read. The sizes must be known while tracing, though, so
there is a kernel for each device, among which ``lax.switch`` chooses.

Source: Shoeybi et al., "Megatron-LM", 2019 (arXiv:1909.08053), for heads; Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022 (arXiv:2205.05198), for
gathering a sequence that is divided.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from reference_kernels.attention import grouped_query
from reference_kernels.attention._operands import check_qkv
from reference_kernels.attention.grouped_query import grouped_query_attention
from reference_kernels.parallel._divide import divide


def gathered_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    axis_name: str,
    *,
    causal: bool = False,
    **settings: Any,
) -> jax.Array:
    """Attention of a sequence of which each device has a part, inside ``jax.shard_map``.

    Args:
      q: queries of this device, ``(b, h, q_len / p, d)``.
      k: keys of this device, ``(b, g, kv_len / p, d)``.
      v: values of this device, ``(b, g, kv_len / p, d_v)``.
      axis_name: the axis of the mesh over which the sequence is divided in order.
      causal: query ``i`` of the whole sequence sees only the keys up to ``i + kv_len - q_len``.
      **settings: ``scale``, ``block_q`` and ``block_kv`` of ``grouped_query_attention``.

    Returns:
      ``(b, h, q_len / p, d_v)``: the outputs of this device's queries.

    Raises:
      ValueError: see ``grouped_query_attention``.
    """
    devices = jax.lax.axis_size(axis_name)
    k, v = (jax.lax.all_gather(x, axis_name, axis=2, tiled=True) for x in (k, v))
    if not causal:
        return grouped_query_attention(q, k, v, **settings)
    past = k.shape[2] - devices * q.shape[2]

    def part(device: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        seen = past + (device + 1) * q.shape[2]
        if seen <= 0:
            return jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        return grouped_query_attention(q, k[:, :, :seen], v[:, :, :seen], causal=True, **settings)

    parts = [functools.partial(part, device) for device in range(devices)]
    return jax.lax.switch(jax.lax.axis_index(axis_name), parts, q, k, v)


def sharded_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    batch_axis: str | None = None,
    head_axis: str | None = None,
    sequence_axis: str | None = None,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 512,
    block_kv: int = 512,
) -> jax.Array:
    """Attention with batch, heads or sequence divided over axes of a mesh.

    It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries, ``(b, h, q_len, d)``, float32 or bfloat16.
      k: keys, ``(b, g, kv_len, d)``; ``g`` divides ``h``.
      v: values, ``(b, g, kv_len, d_v)``.
      mesh: any mesh; along axes that are not named everything is repeated.
      batch_axis: the axis over which ``b`` is divided, if any.
      head_axis: that over which ``h`` and ``g`` are.
      sequence_axis: that over which ``q_len`` and ``kv_len`` are.
      causal: query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores; ``d ** -0.5`` by default.
      block_q: queries in a block.
      block_kv: keys in a block.

    Returns:
      ``(b, h, q_len, d_v)``, of the dtype of ``q`` and divided like it; zero for a query that sees
      no key.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a size is not divisible by the axis
        that divides it, the mesh has no such axis or two sizes the same one, or a block size is not
        positive.
    """
    sizes = check_qkv(q, k, v, front="b h", kv_front="b g")
    if sizes["h"] % sizes["g"]:
        raise ValueError(
            f"k must have a number of heads g that divides the h of q, {sizes['h']}, "
            f"but its g is {sizes['g']}"
        )
    axes = {"batch_axis": batch_axis, "head_axis": head_axis, "sequence_axis": sequence_axis}
    named = [axis for axis in axes.values() if axis is not None]
    if len({*named}) < len(named):
        raise ValueError(
            f"batch_axis, head_axis and sequence_axis must differ, but they are {axes}"
        )
    for position, axis in enumerate(axes.values()):
        for name, words in (("q", "b h q_len"), ("k", "b g kv_len")):
            if axis is not None:
                word = words.split()[position]
                divide(name, word, sizes[word], mesh, axis)
    settings = {"causal": causal, "scale": scale, "block_q": block_q, "block_kv": block_kv}
    kernel = functools.partial(grouped_query_attention, **settings)
    if sequence_axis is not None:
        kernel = functools.partial(gathered_attention, axis_name=sequence_axis, **settings)
    split = PartitionSpec(*axes.values())
    # A pallas_call does not say over which mesh axes its output varies, so the check is off.
    return jax.shard_map(kernel, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)(
        q, k, v
    )


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    batch_axis: str | None = None,
    head_axis: str | None = None,
    sequence_axis: str | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """Attention of the whole arrays."""
    del mesh, batch_axis, head_axis, sequence_axis
    return grouped_query.reference(q, k, v, causal=causal, scale=scale)
