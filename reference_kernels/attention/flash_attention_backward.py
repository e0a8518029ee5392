"""Flash attention, backward: ``dq``, ``dk`` and ``dv`` with the weights computed again by blocks.

Shapes: ``q (h, q_len, d)``, ``k (g, kv_len, d)``, ``v (g, kv_len, d_v)``, ``do (h, q_len, d_v)``;
heads ``h`` share heads ``g`` of keys in groups of ``r = h / g``. Dtypes: float32 or bfloat16.

Source: Dao, "FlashAttention-2", 2023 (arXiv:2307.08691), algorithm 2. With the scores ``s = scale
q k^T`` and the weights ``p = softmax(s)``::

    dv = p^T do    dp = do v^T    ds = p (dp - delta)    dq = scale ds k    dk = scale ds^T q

where ``delta = sum(p dp)`` along the keys is ``sum(o do)`` along ``d_v``, so that it needs no pass
over the keys. The forward kernel saves one number a query, the logarithm of its sum of weights:
``p = exp2(s log2(e) - log_sum)`` needs no maximum and no division. It is +inf for a query that saw
nothing, whose weights are thus zero again.

There are two kernels, because ``dq`` is a sum over the keys and ``dk`` and ``dv`` are sums over the
queries, and a sum stays in VMEM only while the grid runs over what is summed. That costs the
scores and ``dp`` twice: seven products instead of five. The second kernel holds its blocks
transposed, a row for a key: ``p^T do`` and ``ds^T q`` are then products as the matrix unit takes
them, and what belongs to a query is a row, which is spread over a block for nothing. Heads that
share keys follow each other in its grid, and add to the same sums.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._tpu import LANES
from reference_kernels.attention._flash_blocks import (
    Blocks,
    across,
    as_columns,
    as_rows,
    each_slab,
    first_rows,
    product,
    run_block,
)


def _dq_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    do_ref: Any,
    log_sum_ref: Any,
    delta_ref: Any,
    q_ids_ref: Any,
    kv_ids_ref: Any,
    dq_ref: Any,
    acc_ref: Any,
    d_scores_ref: Any,
    *,
    blocks: Blocks,
    scale: float,
) -> None:
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _clear() -> None:
        @each_slab(blocks.block_q)
        def _rows(rows: Any) -> None:
            acc_ref[rows] = jnp.zeros((rows.size, acc_ref.shape[1]), jnp.float32)

    def add_block(edges: bool) -> None:
        k, v = k_ref[...], v_ref[...]
        if edges and blocks.kv_len % blocks.block_kv:
            left = blocks.kv_len - j * blocks.block_kv
            k, v = first_rows(left, k), first_rows(left, v)
        scores = scale * math.log2(math.e) * product(q_ref[...], k, (1, 1))
        ids = None if q_ids_ref is None else (q_ids_ref[...], kv_ids_ref[...])
        if edges or ids is not None:
            scores = blocks.hide(scores, i, j, ids, keys=1, edges=edges)
        weights = jnp.exp2(scores - across(log_sum_ref[...], blocks.block_kv))
        d_weights = product(do_ref[...], v, (1, 1))
        d_scores = weights * (d_weights - across(delta_ref[...], blocks.block_kv))
        d_scores_ref[...] = d_scores.astype(k.dtype)
        acc_ref[...] += product(d_scores_ref[...], k, (1, 0))

    run_block(blocks.whole(i, j), blocks.seen(i, j), add_block)

    @pl.when(j == pl.num_programs(2) - 1)
    def _round() -> None:
        @each_slab(blocks.block_q)
        def _rows(rows: Any) -> None:
            dq_ref[rows] = (scale * acc_ref[rows]).astype(dq_ref.dtype)


def _dkv_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    do_ref: Any,
    log_sum_ref: Any,
    delta_ref: Any,
    q_ids_ref: Any,
    kv_ids_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
    dk_acc_ref: Any,
    dv_acc_ref: Any,
    weights_ref: Any,
    d_scores_ref: Any,
    *,
    blocks: Blocks,
    scale: float,
) -> None:
    j, head, i = pl.program_id(1), pl.program_id(2), pl.program_id(3)

    @pl.when(jnp.logical_and(head == 0, i == 0))
    def _clear() -> None:
        @each_slab(blocks.block_kv)
        def _rows(rows: Any) -> None:
            dk_acc_ref[rows] = jnp.zeros((rows.size, dk_acc_ref.shape[1]), jnp.float32)
            dv_acc_ref[rows] = jnp.zeros((rows.size, dv_acc_ref.shape[1]), jnp.float32)

    def add_block(edges: bool) -> None:
        q, do = q_ref[...], do_ref[...]
        if edges and blocks.q_len % blocks.block_q:
            left = blocks.q_len - i * blocks.block_q
            q, do = first_rows(left, q), first_rows(left, do)
        scores = scale * math.log2(math.e) * product(k_ref[...], q, (1, 1))
        ids = None if q_ids_ref is None else (kv_ids_ref[...], q_ids_ref[...])
        if edges or ids is not None:
            scores = blocks.hide(scores, i, j, ids, keys=0, edges=edges)
        weights = jnp.exp2(scores - log_sum_ref[...])
        weights_ref[...] = weights.astype(do.dtype)
        dv_acc_ref[...] += product(weights_ref[...], do, (1, 0))
        d_weights = product(v_ref[...], do, (1, 1))
        d_scores = weights * (d_weights - delta_ref[...])
        d_scores_ref[...] = d_scores.astype(q.dtype)
        dk_acc_ref[...] += product(d_scores_ref[...], q, (1, 0))

    run_block(blocks.whole(i, j, keys=0), blocks.seen(i, j), add_block)

    last = jnp.logical_and(head == pl.num_programs(2) - 1, i == pl.num_programs(3) - 1)

    @pl.when(last)
    def _round() -> None:
        @each_slab(blocks.block_kv)
        def _rows(rows: Any) -> None:
            dk_ref[rows] = (scale * dk_acc_ref[rows]).astype(dk_ref.dtype)
            dv_ref[rows] = dv_acc_ref[rows].astype(dv_ref.dtype)


def query_gradient(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: tuple[jax.Array, jax.Array] | None,
    log_sums: jax.Array,
    delta: jax.Array,
    do: jax.Array,
    blocks: Blocks,
    scale: float,
) -> jax.Array:
    """``dq``, ``(h, q_len, d)``, from what belongs to each query, ``(h, q_len)``."""
    heads, d, d_v = q.shape[0], q.shape[2], v.shape[2]
    group = heads // k.shape[0]
    share = heads // ids[0].shape[0] if ids else 1
    q_ids, kv_ids = (as_columns(ids[0]), as_rows(ids[1], blocks.block_kv)) if ids else (None, None)

    def of_queries(columns: int, share: int = 1) -> pl.BlockSpec:
        return pl.BlockSpec(
            (pl.squeezed, blocks.block_q, columns), lambda h, i, j: (h // share, i, 0)
        )

    def of_keys(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (pl.squeezed, blocks.block_kv, columns),
            lambda h, i, j: (h // group, blocks.last_kv(i, j), 0),
        )

    kv_ids_spec = pl.BlockSpec(
        (pl.squeezed, pl.squeezed, 1, blocks.block_kv),
        lambda h, i, j: (h // share, blocks.last_kv(i, j), 0, 0),
    )
    return pl.pallas_call(
        functools.partial(_dq_kernel, blocks=blocks, scale=scale),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pl.GridSpec(
            grid=(heads, *blocks.grid),
            in_specs=[
                of_queries(d),
                of_keys(d),
                of_keys(d_v),
                of_queries(d_v),
                of_queries(LANES),
                of_queries(LANES),
                of_queries(LANES, share) if ids else None,
                kv_ids_spec if ids else None,
            ],
            out_specs=of_queries(d),
            scratch_shapes=[
                pltpu.VMEM((blocks.block_q, d), jnp.float32),
                pltpu.VMEM((blocks.block_q, blocks.block_kv), k.dtype),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY)
        ),
        name="flash_attention_dq",
    )(q, k, v, do, as_columns(log_sums), as_columns(delta), q_ids, kv_ids)


def key_value_gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: tuple[jax.Array, jax.Array] | None,
    log_sums: jax.Array,
    delta: jax.Array,
    do: jax.Array,
    blocks: Blocks,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """``dk``, ``(g, kv_len, d)``, and ``dv``, ``(g, kv_len, d_v)``."""
    heads, kv_heads, d, d_v = q.shape[0], k.shape[0], q.shape[2], v.shape[2]
    group = heads // kv_heads
    share = heads // ids[0].shape[0] if ids else 1
    q_ids, kv_ids = (as_rows(ids[0], blocks.block_q), as_columns(ids[1])) if ids else (None, None)

    def of_queries(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (pl.squeezed, blocks.block_q, columns),
            lambda g, j, head, i: (g * group + head, blocks.first_q(i, j), 0),
        )

    def of_query(share: int = 1) -> pl.BlockSpec:
        return pl.BlockSpec(
            (pl.squeezed, pl.squeezed, 1, blocks.block_q),
            lambda g, j, head, i: ((g * group + head) // share, blocks.first_q(i, j), 0, 0),
        )

    def of_keys(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (pl.squeezed, blocks.block_kv, columns), lambda g, j, head, i: (g, j, 0)
        )

    kv_ids_spec = pl.BlockSpec(
        (pl.squeezed, blocks.block_kv, LANES),
        lambda g, j, head, i: (g * group // share, j, 0),
    )
    q_blocks, kv_blocks = blocks.grid
    return pl.pallas_call(
        functools.partial(_dkv_kernel, blocks=blocks, scale=scale),
        out_shape=(
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ),
        grid_spec=pl.GridSpec(
            grid=(kv_heads, kv_blocks, group, q_blocks),
            in_specs=[
                of_queries(d),
                of_keys(d),
                of_keys(d_v),
                of_queries(d_v),
                of_query(),
                of_query(),
                of_query(share) if ids else None,
                kv_ids_spec if ids else None,
            ],
            out_specs=(of_keys(d), of_keys(d_v)),
            scratch_shapes=[
                pltpu.VMEM((blocks.block_kv, d), jnp.float32),
                pltpu.VMEM((blocks.block_kv, d_v), jnp.float32),
                pltpu.VMEM((blocks.block_kv, blocks.block_q), q.dtype),
                pltpu.VMEM((blocks.block_kv, blocks.block_q), q.dtype),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(
                pltpu.PARALLEL,
                pltpu.PARALLEL,
                pltpu.ARBITRARY,
                pltpu.ARBITRARY,
            )
        ),
        name="flash_attention_dkv",
    )(
        q,
        k,
        v,
        do,
        # Queries beyond the end have no weights.
        as_rows(log_sums, blocks.block_q, jnp.inf),
        as_rows(delta, blocks.block_q),
        q_ids,
        kv_ids,
    )


def gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: tuple[jax.Array, jax.Array] | None,
    o: jax.Array,
    log_sums: jax.Array,
    do: jax.Array,
    blocks: Blocks,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk`` and ``dv`` of ``attend`` (see ``flash_attention``), of the dtypes of each.

    Args:
      q: queries, ``(h, q_len, d)``.
      k: keys, ``(g, kv_len, d)``.
      v: values, ``(g, kv_len, d_v)``.
      ids: None, or segment ids ``(b, q_len)`` and ``(b, kv_len)``.
      o: the output, ``(h, q_len, d_v)``.
      log_sums: log2 of each query's sum of exp2 of its scores, float32 ``(h, q_len)``.
      do: the cotangent of ``o``.
      blocks: blocks of the scores.
      scale: factor of the scores.
    """
    delta = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)
    operands = (q, k, v, ids, log_sums, delta, do, blocks, scale)
    return query_gradient(*operands), *key_value_gradients(*operands)
