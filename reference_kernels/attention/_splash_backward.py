"""Splash attention, backward: one kernel for ``dq``, one for ``dk`` and ``dv``.

With ``s`` the scores, ``p = 2 ** (log2(e) s - lse)`` the weights and ``di = sum(o do)`` of each
query: ``dv = p^T do``, ``dp = do v^T``, ``ds = p (dp - di)``, and below a soft cap ``c`` that times
``1 - (s / c) ** 2``. Then ``dq = scale ds k`` and ``dk = scale ds^T q``. The weights are computed
again from ``lse``, the logarithm of each query's sum, which the forward kernel saves.

The first kernel visits the blocks as the forward one does. The second holds a block of keys, visits
the queries that see any of them, for all heads that share the keys, and has the scores transposed:
then ``lse`` and ``di`` are rows, and neither product needs a transpose.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._tpu import LANES
from reference_kernels.attention._splash_block import (
    LOG2_E,
    Problem,
    as_row,
    dot,
    exponents,
    for_each_kind,
    hide,
    inside,
    widen,
)
from reference_kernels.attention._splash_mask import (
    EMPTY,
    FIRST,
    LAST,
    MASK_SHIFT,
    Plan,
    plan,
)


def _uncap(ds: jax.Array, powers: jax.Array, problem: Problem) -> jax.Array:
    """The gradient by the scores before the cap, of that by those after it."""
    if problem.soft_cap is None:
        return ds
    tanh = powers * (1 / (problem.soft_cap * LOG2_E))
    return ds * (1.0 - tanh * tanh)


def _dq_kernel(
    q_blocks: Any,
    kv_blocks: Any,
    flags: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    do_ref: Any,
    lse_ref: Any,
    di_ref: Any,
    q_ids_ref: Any,
    kv_ids_ref: Any,
    mask_ref: Any,
    dq_ref: Any,
    acc_ref: Any,
    *,
    problem: Problem,
    visits: Plan,
) -> None:
    step = pl.program_id(1)
    block_q, block_kv = q_ref.shape[0], k_ref.shape[0]
    first_q, first_kv = q_blocks[step] * block_q, kv_blocks[step] * block_kv

    def add_block(partial: bool) -> None:
        k, v = k_ref[...], v_ref[...]
        if partial:
            k, v = (inside(ref, first_kv, problem.kv_len) for ref in (k_ref, v_ref))
        powers = exponents(dot(q_ref[...], k, (1, 1)), problem)
        seen = hide(
            powers,
            problem,
            key_axis=1,
            start=(first_q, first_kv),
            partial=partial,
            block_ref=mask_ref,
            q_ids=None if q_ids_ref is None else widen(q_ids_ref[...], block_kv),
            kv_ids=None if kv_ids_ref is None else kv_ids_ref[...],
        )
        weights = jnp.exp2(seen - lse_ref[0][:, None])
        ds = weights * (dot(do_ref[...], v, (1, 1)) - di_ref[0][:, None])
        ds = _uncap(ds, powers, problem)
        old = jnp.where(flags[step] & FIRST != 0, 0.0, acc_ref[...])
        acc_ref[...] = old + dot(ds.astype(k.dtype), k, (1, 0))

    for_each_kind(visits, flags[step], add_block)

    @pl.when(flags[step] & LAST != 0)
    def _write() -> None:
        dq_ref[...] = (problem.scale * acc_ref[...]).astype(dq_ref.dtype)

    if visits.has(EMPTY):

        @pl.when(flags[step] & EMPTY != 0)
        def _nothing() -> None:
            dq_ref[...] = jnp.zeros_like(dq_ref)


def _dkv_kernel(
    kv_blocks: Any,
    q_blocks: Any,
    flags: Any,
    members: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    do_ref: Any,
    lse_ref: Any,
    di_ref: Any,
    q_ids_ref: Any,
    kv_ids_ref: Any,
    mask_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
    dk_acc_ref: Any,
    dv_acc_ref: Any,
    *,
    problem: Problem,
    visits: Plan,
) -> None:
    del members  # for the index maps
    step = pl.program_id(1)
    block_q, block_kv = q_ref.shape[0], k_ref.shape[0]
    first_q, first_kv = q_blocks[step] * block_q, kv_blocks[step] * block_kv
    is_first = flags[step] & FIRST != 0

    def add_block(partial: bool) -> None:
        q, do = (inside(ref, first_q, problem.q_len) for ref in (q_ref, do_ref))
        powers = exponents(dot(k_ref[...], q, (1, 1)), problem)
        seen = hide(
            powers,
            problem,
            key_axis=0,
            start=(first_q, first_kv),
            partial=partial,
            block_ref=mask_ref,
            q_ids=None if q_ids_ref is None else q_ids_ref[...],
            kv_ids=None if kv_ids_ref is None else widen(kv_ids_ref[...], block_q),
        )
        weights = jnp.exp2(seen - lse_ref[...])
        dv_old = jnp.where(is_first, 0.0, dv_acc_ref[...])
        dv_acc_ref[...] = dv_old + dot(weights.astype(do.dtype), do, (1, 0))
        ds = _uncap(weights * (dot(v_ref[...], do, (1, 1)) - di_ref[...]), powers, problem)
        dk_old = jnp.where(is_first, 0.0, dk_acc_ref[...])
        dk_acc_ref[...] = dk_old + dot(ds.astype(q.dtype), q, (1, 0))

    for_each_kind(visits, flags[step], add_block)

    @pl.when(flags[step] & LAST != 0)
    def _write() -> None:
        dk_ref[...] = (problem.scale * dk_acc_ref[...]).astype(dk_ref.dtype)
        dv_ref[...] = dv_acc_ref[...].astype(dv_ref.dtype)

    if visits.has(EMPTY):

        @pl.when(flags[step] & EMPTY != 0)
        def _nothing() -> None:
            dk_ref[...] = jnp.zeros_like(dk_ref)
            dv_ref[...] = jnp.zeros_like(dv_ref)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    o: jax.Array,
    lse: jax.Array,
    do: jax.Array,
    problem: Problem,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk`` and ``dv``, of the output ``o``, its gradient and ``lse (h, q_len)``."""
    di = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)
    # Beyond the last query there are no weights: 2 ** -inf.
    beyond = ((0, 0), (0, -problem.q_len % problem.block_q))
    lse = jnp.pad(lse, beyond, constant_values=jnp.inf)[:, None]
    di = jnp.pad(di, beyond)[:, None]
    operands = (q, k, v, do, lse, di)
    dq = _dq(*operands, q_segments, kv_segments, problem)
    return dq, *_dkv(*operands, q_segments, kv_segments, problem)


def _dq(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    do: jax.Array,
    lse: jax.Array,
    di: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    problem: Problem,
) -> jax.Array:
    (heads, q_len, d), (_, kv_len, d_v) = q.shape, v.shape
    block_q, block_kv, group = problem.block_q, problem.block_kv, problem.group
    visits = plan(problem.mask, (q_len, kv_len), (block_q, block_kv))
    head = pl.Squeezed()

    def by_query(h: Any, t: Any, q_blocks: Any, *_: Any) -> tuple[Any, Any, int]:
        return h, q_blocks[t], 0

    def by_key(h: Any, t: Any, _: Any, kv_blocks: Any, __: Any) -> tuple[Any, Any, int]:
        return jax.lax.div(h, group) if group > 1 else h, kv_blocks[t], 0

    q_ids = kv_ids = q_ids_spec = kv_ids_spec = mask_spec = None
    if q_segments is not None and kv_segments is not None:
        q_ids = jnp.broadcast_to(q_segments[:, None], (q_len, LANES))
        kv_ids = as_row(kv_segments, block_kv)
        q_ids_spec = pl.BlockSpec((block_q, LANES), lambda h, t, q, k, f: (q[t], 0))
        kv_ids_spec = pl.BlockSpec((1, block_kv), lambda h, t, q, k, f: (0, k[t]))
    if visits.blocks is not None:
        mask_spec = pl.BlockSpec(
            (head, block_q, block_kv), lambda h, t, q, k, f: (f[t] >> MASK_SHIFT, 0, 0)
        )
    row_spec = pl.BlockSpec((head, 1, block_q), lambda h, t, q, k, f: (h, 0, q[t]))
    return pl.pallas_call(
        functools.partial(_dq_kernel, problem=problem, visits=visits),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(heads, visits.steps),
            in_specs=[
                pl.BlockSpec((head, block_q, d), by_query),
                pl.BlockSpec((head, block_kv, d), by_key),
                pl.BlockSpec((head, block_kv, d_v), by_key),
                pl.BlockSpec((head, block_q, d_v), by_query),
                row_spec,
                row_spec,
                q_ids_spec,
                kv_ids_spec,
                mask_spec,
            ],
            out_specs=pl.BlockSpec((head, block_q, d), by_query),
            scratch_shapes=[pltpu.VMEM((block_q, d), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(
        *(visits.row, visits.column, visits.flags),
        *(q, k, v, do, lse, di, q_ids, kv_ids, visits.blocks),
    )


def _dkv(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    do: jax.Array,
    lse: jax.Array,
    di: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    problem: Problem,
) -> tuple[jax.Array, jax.Array]:
    (_, q_len, d), (kv_heads, kv_len, d_v) = q.shape, v.shape
    block_q, block_kv, group = problem.block_q, problem.block_kv, problem.group
    visits = plan(problem.mask, (q_len, kv_len), (block_q, block_kv), by_keys=True, members=group)
    head = pl.Squeezed()

    def by_key(g: Any, t: Any, kv_blocks: Any, *_: Any) -> tuple[Any, Any, int]:
        return g, kv_blocks[t], 0

    def by_query(g: Any, t: Any, _: Any, q_blocks: Any, __: Any, m: Any) -> tuple[Any, Any, int]:
        return g * group + m[t], q_blocks[t], 0

    q_ids = kv_ids = q_ids_spec = kv_ids_spec = mask_spec = None
    if q_segments is not None and kv_segments is not None:
        q_ids = as_row(q_segments, block_q)
        kv_ids = jnp.broadcast_to(kv_segments[:, None], (kv_len, LANES))
        q_ids_spec = pl.BlockSpec((1, block_q), lambda g, t, k, q, f, m: (0, q[t]))
        kv_ids_spec = pl.BlockSpec((block_kv, LANES), lambda g, t, k, q, f, m: (k[t], 0))
    if visits.blocks is not None:
        mask_spec = pl.BlockSpec(
            (head, block_kv, block_q), lambda g, t, k, q, f, m: (f[t] >> MASK_SHIFT, 0, 0)
        )
    row_spec = pl.BlockSpec(
        (head, 1, block_q), lambda g, t, k, q, f, m: (g * group + m[t], 0, q[t])
    )
    dk, dv = pl.pallas_call(
        functools.partial(_dkv_kernel, problem=problem, visits=visits),
        out_shape=(
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(kv_heads, visits.steps),
            in_specs=[
                pl.BlockSpec((head, block_q, d), by_query),
                pl.BlockSpec((head, block_kv, d), by_key),
                pl.BlockSpec((head, block_kv, d_v), by_key),
                pl.BlockSpec((head, block_q, d_v), by_query),
                row_spec,
                row_spec,
                q_ids_spec,
                kv_ids_spec,
                mask_spec,
            ],
            out_specs=(
                pl.BlockSpec((head, block_kv, d), by_key),
                pl.BlockSpec((head, block_kv, d_v), by_key),
            ),
            scratch_shapes=[
                pltpu.VMEM((block_kv, d), jnp.float32),
                pltpu.VMEM((block_kv, d_v), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(
        *(visits.row, visits.column, visits.flags, visits.member),
        *(q, k, v, do, lse, di, q_ids, kv_ids, visits.blocks),
    )
    return dk, dv
