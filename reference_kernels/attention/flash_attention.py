"""Flash attention, one head: ``o = softmax(scale q k^T) v`` by blocks of keys.

Shapes: ``q (q_len, d)``, ``k (kv_len, d)``, ``v (kv_len, d_v)``, ``o (q_len, d_v)``. Dtypes:
float32 or bfloat16, the same for all; scores and sums are float32.

Source: Dao et al., "FlashAttention", 2022 (arXiv:2205.14135), with the online softmax of Milakov
and Gimelshein, 2018 (arXiv:1805.02867). For a block of queries, the blocks of keys come one after
the other. The running maximum ``m``, sum ``l`` and weighted sum of values ``acc`` of each query are
kept in VMEM, and rescaled by ``exp(m_old - m_new)`` whenever a larger score turns up. So memory is
linear in the lengths.

A TPU computes ``exp2``, so scores are taken to base 2 as they leave the matrix unit, when the
vector unit has time. ``m`` and ``l`` fill all 128 lanes: ``m`` is the same in each, so it need not
be spread over the lanes for every block, and ``l`` is 128 partial sums, which are added up once at
the end. The weights lie in a buffer of their own between the exponential and the second product;
left to itself, the compiler would keep them in spilled registers, at twice the size. A block in
which everything is visible is computed without a mask.

Causal masking is aligned at the bottom right: query ``i`` sees the keys up to
``i + kv_len - q_len``, so that the last query sees all of them, as it must when the keys are a
longer past than the queries. With more queries than keys, the first ones see none: their output is
zero. Blocks of keys that no query of the block may see are neither computed nor copied.

Backward: see ``flash_attention_backward``, which needs ``log2`` of each query's sum of ``exp2``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES, ROWS, fit, product
from reference_kernels.attention._flash_blocks import (
    Blocks,
    across,
    as_columns,
    as_rows,
    each_slab,
    first_rows,
    lane_sums,
    run_block,
)
from reference_kernels.attention._operands import (
    SegmentIds,
    check_qkv,
    check_segment_ids,
    reference,
)
from reference_kernels.attention.flash_attention_backward import gradients


class _Inputs(NamedTuple):
    """Blocks that a step of the grid reads.

    Attributes:
      q: ``(block_q, d)``.
      k: ``(block_kv, d)``.
      v: ``(block_kv, d_v)``.
      q_ids: segment ids of the queries, ``(block_q, LANES)``, the same in all lanes; or None.
      kv_ids: those of the keys, ``(1, block_kv)``; or None.
    """

    q: Ref
    k: Ref
    v: Ref
    q_ids: Ref | None
    kv_ids: Ref | None


class _Outputs(NamedTuple):
    """Blocks that the last step of a block of queries writes.

    Attributes:
      o: ``(block_q, d_v)``.
      log_sum: log2 of each query's sum of exp2, ``(block_q, LANES)``, the same in all lanes; None
        if nobody asks for it.
    """

    o: Ref
    log_sum: Ref | None


class _Softmax(NamedTuple):
    """What is known of a block of queries so far, float32 in VMEM.

    Attributes:
      m: the maximum of the scores, ``(block_q, LANES)``, the same in all lanes.
      sums: ``l``, partial sums of the weights, ``(block_q, LANES)``.
      acc: sums of the weighted values, ``(block_q, d_v)``.
      weights: those of the step, rounded to the dtype of the values, ``(block_q, block_kv)``.
    """

    m: Ref
    sums: Ref
    acc: Ref
    weights: Ref


def _attention_kernel(
    inputs: _Inputs, outputs: _Outputs, softmax: _Softmax, *, blocks: Blocks, scale: float
) -> None:
    """Step ``(h, i, j)`` of the grid: block ``i`` of queries attends to block ``j`` of keys."""
    i, j = pl.program_id(1), pl.program_id(2)
    add_block = functools.partial(_add_block, inputs, softmax, i, j, blocks, scale)
    pl.when(j == 0)(lambda: _clear(softmax))
    run_block(blocks.whole(i, j), blocks.seen(i, j), add_block)
    pl.when(j == pl.num_programs(2) - 1)(lambda: _divide(softmax, outputs))


def _clear(softmax: _Softmax) -> None:
    """No key has been seen."""
    block_q, d_v = softmax.acc.shape

    @each_slab(block_q)
    def _rows(rows: pl.Slice) -> None:
        softmax.m[rows] = jnp.full((rows.size, LANES), -jnp.inf, jnp.float32)
        softmax.sums[rows] = jnp.zeros((rows.size, LANES), jnp.float32)
        softmax.acc[rows] = jnp.zeros((rows.size, d_v), jnp.float32)


def _add_block(
    inputs: _Inputs,
    softmax: _Softmax,
    i: jax.Array,
    j: jax.Array,
    blocks: Blocks,
    scale: float,
    edges: bool,
) -> None:
    """Add a block of keys, of which some are hidden from some queries if it has ``edges``."""
    scores = scale * math.log2(math.e) * product(inputs.q[...], inputs.k[...], (1, 1))
    v = inputs.v[...]
    ids = None
    if inputs.q_ids is not None and inputs.kv_ids is not None:
        ids = inputs.q_ids[...], inputs.kv_ids[...]
    masked = edges or ids is not None
    if masked:
        scores = blocks.hide(scores, i, j, ids, keys=1, edges=edges)
    if edges and blocks.kv_len % blocks.block_kv:
        v = first_rows(blocks.kv_len - j * blocks.block_kv, v)
    m = jnp.maximum(softmax.m[...], jnp.max(scores, axis=1, keepdims=True))
    # A row that has seen nothing yet has the maximum -inf, and -inf - -inf is NaN.
    shift = jnp.where(m == -jnp.inf, 0.0, m) if masked else m
    weights = jnp.exp2(scores - across(shift, blocks.block_kv))
    softmax.weights[...] = weights.astype(softmax.weights.dtype)
    rescale = jnp.exp2(softmax.m[...] - shift)
    softmax.m[...] = m
    softmax.sums[...] = rescale * softmax.sums[...] + lane_sums(weights)
    softmax.acc[...] = across(rescale, v.shape[1]) * softmax.acc[...] + product(
        softmax.weights[...], v, (1, 0)
    )


def _divide(softmax: _Softmax, outputs: _Outputs) -> None:
    """Divide by the sums of the weights; a query that has seen no key gets zero."""
    block_q, _ = softmax.acc.shape

    @each_slab(block_q)
    def _rows(rows: pl.Slice) -> None:
        total = jnp.sum(softmax.sums[rows], axis=1, keepdims=True)
        o = softmax.acc[rows] / jnp.where(total == 0.0, 1.0, total)
        outputs.o[rows] = o.astype(outputs.o.dtype)
        if outputs.log_sum is not None:
            log_sum = softmax.m[rows] + jnp.log2(total)
            outputs.log_sum[rows] = jnp.where(total == 0.0, jnp.inf, log_sum)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What ``attend`` needs besides arrays.

    Attributes:
      blocks: the blocks of the scores.
      scale: factor of the scores.
      split_queries: whether cores may share the blocks of queries of a head.
    """

    blocks: Blocks
    scale: float
    split_queries: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: SegmentIds | None, settings: Settings
) -> jax.Array:
    """Attention of ``h`` heads of queries, in groups that share one of ``g`` heads of keys.

    Args:
      q: ``(h, q_len, d)``.
      k: ``(g, kv_len, d)``, where ``g`` divides ``h``: head ``i`` reads head ``i // (h // g)``.
      v: ``(g, kv_len, d_v)``.
      ids: None, or segment ids ``(b, q_len)`` and ``(b, kv_len)``, where ``b`` divides ``h``.
      settings: blocks and scale.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``.
    """
    return _call(q, k, v, ids, settings, save=False)[0]


def _call(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: SegmentIds | None,
    settings: Settings,
    *,
    save: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """The output and, if ``save``, each query's log2 of its sum of exp2, ``(h, q_len)``."""
    blocks, heads, d, d_v = settings.blocks, q.shape[0], q.shape[2], v.shape[2]
    group = heads // k.shape[0]

    def q_block(h: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return h, i, 0

    def kv_block(h: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return h // group, blocks.last_kv(i, j), 0

    q_ids = kv_ids = q_ids_spec = kv_ids_spec = None
    if ids is not None:
        share = heads // ids[0].shape[0]
        q_ids, kv_ids = as_columns(ids[0]), as_rows(ids[1], blocks.block_kv)
        q_ids_spec = pl.BlockSpec(
            (pl.squeezed, blocks.block_q, LANES), lambda h, i, j: (h // share, i, 0)
        )
        kv_ids_spec = pl.BlockSpec(
            (pl.squeezed, pl.squeezed, 1, blocks.block_kv),
            lambda h, i, j: (h // share, blocks.last_kv(i, j), 0, 0),
        )
    log_sums = jax.ShapeDtypeStruct((heads, blocks.q_len, LANES), jnp.float32)
    queries = pltpu.PARALLEL if settings.split_queries else pltpu.ARBITRARY
    [outputs] = pl.pallas_call(
        functools.partial(_attention_kernel, blocks=blocks, scale=settings.scale),
        out_shape=[
            _Outputs(
                o=jax.ShapeDtypeStruct((heads, blocks.q_len, d_v), q.dtype),
                log_sum=log_sums if save else None,
            )
        ],
        grid_spec=pl.GridSpec(
            grid=(heads, *blocks.grid),
            in_specs=[
                _Inputs(
                    q=pl.BlockSpec((pl.squeezed, blocks.block_q, d), q_block),
                    k=pl.BlockSpec((pl.squeezed, blocks.block_kv, d), kv_block),
                    v=pl.BlockSpec((pl.squeezed, blocks.block_kv, d_v), kv_block),
                    q_ids=q_ids_spec,
                    kv_ids=kv_ids_spec,
                )
            ],
            out_specs=[
                _Outputs(
                    o=pl.BlockSpec((pl.squeezed, blocks.block_q, d_v), q_block),
                    log_sum=(
                        pl.BlockSpec((pl.squeezed, blocks.block_q, LANES), q_block)
                        if save
                        else None
                    ),
                )
            ],
            scratch_shapes=[
                _Softmax(
                    m=pltpu.VMEM((blocks.block_q, LANES), jnp.float32),
                    sums=pltpu.VMEM((blocks.block_q, LANES), jnp.float32),
                    acc=pltpu.VMEM((blocks.block_q, d_v), jnp.float32),
                    weights=pltpu.VMEM((blocks.block_q, blocks.block_kv), v.dtype),
                )
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, queries, pltpu.ARBITRARY)
        ),
        name="flash_attention",
    )(_Inputs(q, k, v, q_ids, kv_ids))
    return outputs.o, None if outputs.log_sum is None else outputs.log_sum[..., 0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: SegmentIds | None, settings: Settings
) -> tuple[jax.Array, Any]:
    o, log_sums = _call(q, k, v, ids, settings, save=True)
    return o, (q, k, v, ids, o, log_sums)


def _backward(settings: Settings, saved: Any, do: jax.Array) -> tuple[Any, ...]:
    return (*gradients(*saved, do, settings.blocks, settings.scale), None)


attend.defvjp(_forward, _backward)


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    segment_ids: SegmentIds | None = None,
    block_q: int = 512,
    block_kv: int = 512,
    split_queries: bool = True,
) -> jax.Array:
    """Attention of one head. It can be differentiated by ``q``, ``k`` and ``v``.

    More heads and batches come by ``jax.vmap`` (see ``multi_head``), or by the grid (see
    ``grouped_query``).

    Args:
      q: queries, ``(q_len, d)``, float32 or bfloat16.
      k: keys, ``(kv_len, d)``.
      v: values, ``(kv_len, d_v)``.
      causal: query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores; ``d ** -0.5`` by default.
      segment_ids: int32 of shape ``(q_len,)`` and ``(kv_len,)``; a query sees the keys whose id
        is its own.
      block_q: queries in a block.
      block_kv: keys in a block. Scores and weights of a block are ``(block_q, block_kv)`` in
        float32, 1 MB each with the defaults.
      split_queries: let the cores of a chip share the blocks of queries. Under ``jax.vmap`` they
        share the mapped dimension anyway.

    Returns:
      ``(q_len, d_v)``, of the dtype of ``q``; zero for a query that sees no key.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    sizes = check_qkv(q, k, v)
    ids = None
    if segment_ids is not None:
        check_segment_ids(segment_ids, sizes)
        ids = (segment_ids[0][None], segment_ids[1][None])
    settings = Settings(
        blocks=blocks_for(sizes, causal=causal, block_q=block_q, block_kv=block_kv),
        scale=sizes["d"] ** -0.5 if scale is None else scale,
        split_queries=split_queries,
    )
    return attend(q[None], k[None], v[None], ids, settings)[0]


def blocks_for(sizes: Mapping[str, int], *, causal: bool, block_q: int, block_kv: int) -> Blocks:
    """Blocks that are not larger than the operands."""
    _require.positive(block_q=block_q, block_kv=block_kv)
    q_len, kv_len = sizes["q_len"], sizes["kv_len"]
    return Blocks(q_len, kv_len, fit(block_q, q_len, ROWS), fit(block_kv, kv_len, ROWS), causal)


def segmented_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_ids: jax.Array,
    kv_ids: jax.Array,
    **settings: Any,
) -> jax.Array:
    """``flash_attention`` with the segment ids as operands of their own."""
    return flash_attention(q, k, v, segment_ids=(q_ids, kv_ids), **settings)


def segmented_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_ids: jax.Array,
    kv_ids: jax.Array,
    *,
    causal: bool = False,
) -> jax.Array:
    """Attention within segments, the whole matrix of scores at once."""
    return reference(q, k, v, segment_ids=(q_ids, kv_ids), causal=causal)
