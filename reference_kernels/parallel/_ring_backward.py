"""Gradients of ring attention: the kernels of flash attention's backward pass, around a ring.

With ``delta`` and each query's ``log_sum`` over all keys, which the forward kernel has, the shares
of a device in ``dq``, ``dk`` and ``dv`` need nothing of the other keys (see
``flash_attention_backward``). So keys and values travel once more, and the sums for their gradients
travel with them, in float32: each device adds what its queries contribute, and after ``p`` steps
the sums are back at the device that has those keys.

The steps are ``lax.ppermute``, not copies of a kernel's own. XLA may start to send keys and values
before the kernels of a round, which do not depend on what comes in; the sums have to wait for them.
A step sends twice the bytes of the forward one for the sums of bfloat16 keys, besides the keys.

Causal, a shard of later keys has weights of zero: a ``log_sum`` of infinity says so. Leaving such
rounds out would gain nothing, because all devices take a step together, and the last one has work
in every round.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels.attention._flash_blocks import Blocks
from reference_kernels.attention.flash_attention_backward import (
    key_value_gradients,
    query_gradient,
)


def ring_gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: jax.Array,
    log_sums: jax.Array,
    do: jax.Array,
    *,
    axis_name: str,
    blocks: Blocks,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk`` and ``dv`` of a device's shard, of the dtypes of each.

    Args:
      q: queries of this device, ``(h, q_len, d)``.
      k: keys, ``(g, kv_len, d)``.
      v: values, ``(g, kv_len, d_v)``.
      o: the output, ``(h, q_len, d_v)``.
      log_sums: log2 of each query's sum of exp2 of its scores, float32 ``(h, q_len)``.
      do: the cotangent of ``o``.
      axis_name: the axis of the mesh over which the sequence is split.
      blocks: blocks of the scores in a device's own shard.
      scale: factor of the scores.
    """
    devices, me = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    delta = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)
    later = dataclasses.replace(blocks, causal=False)

    def shares(keys: Any, blocks: Blocks, log_sums: jax.Array) -> tuple[Any, Any]:
        operands = (q, *keys, None, log_sums, delta, do, blocks, scale)
        found = (query_gradient(*operands), *key_value_gradients(*operands))
        dq, dk, dv = (x.astype(jnp.float32) for x in found)
        return dq, (dk, dv)

    def passed_on(x: Any) -> Any:
        ring = [(device, (device + 1) % devices) for device in range(devices)]
        return jax.tree.map(lambda each: jax.lax.ppermute(each, axis_name, ring), x)

    def other_shard(s: Any, carry: Any) -> Any:
        dq, keys, sums = carry
        keys, sums = passed_on(keys), passed_on(sums)
        # Device i has the shard of i - s now: a later one of the sequence, where that wraps around.
        seen = jnp.logical_or(not blocks.causal, s <= me)
        more = shares(keys, later, jnp.where(seen, log_sums, jnp.inf))
        dq, sums = jax.tree.map(jnp.add, (dq, sums), more)
        return dq, keys, sums

    dq, sums = shares((k, v), blocks, log_sums)
    if devices > 1:
        dq, _, sums = jax.lax.fori_loop(1, devices, other_shard, (dq, (k, v), sums))
        sums = passed_on(sums)
    return dq.astype(q.dtype), sums[0].astype(k.dtype), sums[1].astype(v.dtype)
