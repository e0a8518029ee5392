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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES, product
from reference_kernels.attention._flash_blocks import (
    Blocks,
    across,
    as_columns,
    as_rows,
    each_slab,
    first_rows,
    run_block,
)


class _Inputs(NamedTuple):
    """Blocks that a step of a grid reads.

    What belongs to a query is a column for ``_dq_kernel``, ``(block_q, LANES)``, the same in all
    lanes, and a row for ``_dkv_kernel``, ``(1, block_q)``, as it lies along the scores.

    Attributes:
      q: ``(block_q, d)``.
      k: ``(block_kv, d)``.
      v: ``(block_kv, d_v)``.
      do: the cotangent of the output, ``(block_q, d_v)``.
      log_sum: log2 of each query's sum of exp2.
      delta: sum of each query's ``o do``.
      q_ids: segment ids of the queries, or None.
      kv_ids: those of the keys, along the other axis of the scores, or None.
    """

    q: Ref
    k: Ref
    v: Ref
    do: Ref
    log_sum: Ref
    delta: Ref
    q_ids: Ref | None
    kv_ids: Ref | None


class _QuerySums(NamedTuple):
    """What ``_dq_kernel`` has in VMEM.

    Attributes:
      dq: sums over the keys so far, ``(block_q, d)``, float32.
      d_scores: cotangents of a block of scores, ``(block_q, block_kv)``, in the dtype of the keys.
    """

    dq: Ref
    d_scores: Ref


class _KeyGradients(NamedTuple):
    """What ``_dkv_kernel`` writes: ``dk (block_kv, d)`` and ``dv (block_kv, d_v)``."""

    dk: Ref
    dv: Ref


class _KeySums(NamedTuple):
    """What ``_dkv_kernel`` has in VMEM.

    Attributes:
      dk: sums over the queries so far, ``(block_kv, d)``, float32.
      dv: likewise, ``(block_kv, d_v)``.
      weights: of a block of scores, ``(block_kv, block_q)``, in the dtype of the queries.
      d_scores: their cotangents, likewise.
    """

    dk: Ref
    dv: Ref
    weights: Ref
    d_scores: Ref


def _dq_kernel(inputs: _Inputs, dq: Ref, sums: _QuerySums, *, blocks: Blocks, scale: float) -> None:
    """Step ``(h, i, j)`` of the grid: what block ``j`` of keys adds to block ``i`` of ``dq``."""
    i, j = pl.program_id(1), pl.program_id(2)
    add_block = functools.partial(_add_keys, inputs, sums, i, j, blocks, scale)
    pl.when(j == 0)(lambda: _clear(sums.dq))
    run_block(blocks.whole(i, j), blocks.seen(i, j), add_block)

    @pl.when(j == pl.num_programs(2) - 1)
    def _round() -> None:
        @each_slab(blocks.block_q)
        def _rows(rows: pl.Slice) -> None:
            dq[rows] = (scale * sums.dq[rows]).astype(dq.dtype)


def _clear(*sums: Ref) -> None:
    """Nothing has been added to the sums, which have equally many rows."""

    @each_slab(sums[0].shape[0])
    def _rows(rows: pl.Slice) -> None:
        for each in sums:
            each[rows] = jnp.zeros((rows.size, each.shape[1]), jnp.float32)


def _add_keys(
    inputs: _Inputs,
    sums: _QuerySums,
    i: jax.Array,
    j: jax.Array,
    blocks: Blocks,
    scale: float,
    edges: bool,
) -> None:
    """Add ``ds k`` of a block of keys to ``dq``."""
    k, v = inputs.k[...], inputs.v[...]
    if edges and blocks.kv_len % blocks.block_kv:
        left = blocks.kv_len - j * blocks.block_kv
        k, v = first_rows(left, k), first_rows(left, v)
    scores = scale * math.log2(math.e) * product(inputs.q[...], k, (1, 1))
    ids = None
    if inputs.q_ids is not None and inputs.kv_ids is not None:
        ids = inputs.q_ids[...], inputs.kv_ids[...]
    if edges or ids is not None:
        scores = blocks.hide(scores, i, j, ids, keys=1, edges=edges)
    weights = jnp.exp2(scores - across(inputs.log_sum[...], blocks.block_kv))
    d_weights = product(inputs.do[...], v, (1, 1))
    d_scores = weights * (d_weights - across(inputs.delta[...], blocks.block_kv))
    sums.d_scores[...] = d_scores.astype(k.dtype)
    sums.dq[...] += product(sums.d_scores[...], k, (1, 0))


def _dkv_kernel(
    inputs: _Inputs, outputs: _KeyGradients, sums: _KeySums, *, blocks: Blocks, scale: float
) -> None:
    """Step ``(g, j, head, i)`` of the grid: what queries of a head add to ``dk`` and ``dv``."""
    j, head, i = pl.program_id(1), pl.program_id(2), pl.program_id(3)
    add_block = functools.partial(_add_queries, inputs, sums, i, j, blocks, scale)
    pl.when(jnp.logical_and(head == 0, i == 0))(lambda: _clear(sums.dk, sums.dv))
    run_block(blocks.whole(i, j, keys=0), blocks.seen(i, j), add_block)

    last = jnp.logical_and(head == pl.num_programs(2) - 1, i == pl.num_programs(3) - 1)

    @pl.when(last)
    def _round() -> None:
        @each_slab(blocks.block_kv)
        def _rows(rows: pl.Slice) -> None:
            outputs.dk[rows] = (scale * sums.dk[rows]).astype(outputs.dk.dtype)
            outputs.dv[rows] = sums.dv[rows].astype(outputs.dv.dtype)


def _add_queries(
    inputs: _Inputs,
    sums: _KeySums,
    i: jax.Array,
    j: jax.Array,
    blocks: Blocks,
    scale: float,
    edges: bool,
) -> None:
    """Add ``p^T do`` of a block of queries to ``dv``, and ``ds^T q`` to ``dk``."""
    q, do = inputs.q[...], inputs.do[...]
    if edges and blocks.q_len % blocks.block_q:
        left = blocks.q_len - i * blocks.block_q
        q, do = first_rows(left, q), first_rows(left, do)
    scores = scale * math.log2(math.e) * product(inputs.k[...], q, (1, 1))
    ids = None
    if inputs.q_ids is not None and inputs.kv_ids is not None:
        ids = inputs.kv_ids[...], inputs.q_ids[...]
    if edges or ids is not None:
        scores = blocks.hide(scores, i, j, ids, keys=0, edges=edges)
    weights = jnp.exp2(scores - inputs.log_sum[...])
    sums.weights[...] = weights.astype(do.dtype)
    sums.dv[...] += product(sums.weights[...], do, (1, 0))
    d_weights = product(inputs.v[...], do, (1, 1))
    d_scores = weights * (d_weights - inputs.delta[...])
    sums.d_scores[...] = d_scores.astype(q.dtype)
    sums.dk[...] += product(sums.d_scores[...], q, (1, 0))


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
                _Inputs(
                    q=of_queries(d),
                    k=of_keys(d),
                    v=of_keys(d_v),
                    do=of_queries(d_v),
                    log_sum=of_queries(LANES),
                    delta=of_queries(LANES),
                    q_ids=of_queries(LANES, share) if ids else None,
                    kv_ids=kv_ids_spec if ids else None,
                )
            ],
            out_specs=of_queries(d),
            scratch_shapes=[
                _QuerySums(
                    dq=pltpu.VMEM((blocks.block_q, d), jnp.float32),
                    d_scores=pltpu.VMEM((blocks.block_q, blocks.block_kv), k.dtype),
                )
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY)
        ),
        name="flash_attention_dq",
    )(_Inputs(q, k, v, do, as_columns(log_sums), as_columns(delta), q_ids, kv_ids))


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
    [outputs] = pl.pallas_call(
        functools.partial(_dkv_kernel, blocks=blocks, scale=scale),
        out_shape=[
            _KeyGradients(
                dk=jax.ShapeDtypeStruct(k.shape, k.dtype), dv=jax.ShapeDtypeStruct(v.shape, v.dtype)
            )
        ],
        grid_spec=pl.GridSpec(
            grid=(kv_heads, kv_blocks, group, q_blocks),
            in_specs=[
                _Inputs(
                    q=of_queries(d),
                    k=of_keys(d),
                    v=of_keys(d_v),
                    do=of_queries(d_v),
                    log_sum=of_query(),
                    delta=of_query(),
                    q_ids=of_query(share) if ids else None,
                    kv_ids=kv_ids_spec if ids else None,
                )
            ],
            out_specs=[_KeyGradients(dk=of_keys(d), dv=of_keys(d_v))],
            scratch_shapes=[
                _KeySums(
                    dk=pltpu.VMEM((blocks.block_kv, d), jnp.float32),
                    dv=pltpu.VMEM((blocks.block_kv, d_v), jnp.float32),
                    weights=pltpu.VMEM((blocks.block_kv, blocks.block_q), q.dtype),
                    d_scores=pltpu.VMEM((blocks.block_kv, blocks.block_q), q.dtype),
                )
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
        _Inputs(
            q,
            k,
            v,
            do,
            # Queries beyond the end have no weights.
            log_sum=as_rows(log_sums, blocks.block_q, jnp.inf),
            delta=as_rows(delta, blocks.block_q),
            q_ids=q_ids,
            kv_ids=kv_ids,
        )
    )
    return outputs.dk, outputs.dv


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
