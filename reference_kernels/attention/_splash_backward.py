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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._refs import Ref
from reference_kernels._tpu import product
from reference_kernels.attention._splash_block import (
    LOG2_E,
    Inputs,
    Problem,
    Saved,
    Visits,
    clear_unseen,
    exponents,
    for_each_kind,
    hide,
    inside,
)
from reference_kernels.attention._splash_mask import FIRST, LAST, Plan
from reference_kernels.attention._splash_operands import Layout


class _KeyGradients(NamedTuple):
    """Gradients of a block of keys, or their sums so far, in float32.

    Attributes:
      dk: ``(block_kv, d)``.
      dv: ``(block_kv, d_v)``.
    """

    dk: Ref
    dv: Ref


def _uncap(ds: jax.Array, powers: jax.Array, problem: Problem) -> jax.Array:
    """The gradient by the scores before the cap, of that by those after it."""
    if problem.soft_cap is None:
        return ds
    tanh = powers * (1 / (problem.soft_cap * LOG2_E))
    return ds * (1.0 - tanh * tanh)


def _dq_kernel(
    visits: Visits, inputs: Inputs, dq: Ref, acc: Ref, *, problem: Problem, schedule: Plan
) -> None:
    """A visit: add what a block of keys gives to ``dq``, whose sums are in ``acc``."""
    step, flags = pl.program_id(1), visits.flags
    start = (visits.row[step] * problem.block_q, visits.column[step] * problem.block_kv)

    def add_block(partial: bool) -> None:
        ds, k = _gradient_of_scores(inputs, problem, start, partial)
        old = jnp.where(flags[step] & FIRST != 0, 0.0, acc[...])
        acc[...] = old + product(ds.astype(k.dtype), k, (1, 0))

    for_each_kind(schedule, flags[step], add_block)

    @pl.when(flags[step] & LAST != 0)
    def _write() -> None:
        dq[...] = (problem.scale * acc[...]).astype(dq.dtype)

    clear_unseen(schedule, visits, step, dq)


def _gradient_of_scores(
    inputs: Inputs, problem: Problem, start: tuple[jax.Array, jax.Array], partial: bool
) -> tuple[jax.Array, jax.Array]:
    """``ds`` of a visit, ``(block_q, block_kv)``, and the keys, without those beyond the end."""
    assert inputs.saved is not None
    do_ref, lse, di = inputs.saved
    k, v = inputs.k[...], inputs.v[...]
    if partial:
        k, v = (inside(ref, start[1], problem.kv_len) for ref in (inputs.k, inputs.v))
    powers = exponents(product(inputs.q[...], k, (1, 1)), problem)
    seen = hide(powers, inputs, problem, key_axis=1, start=start, partial=partial)
    weights = jnp.exp2(seen - lse[0][:, None])
    ds = weights * (product(do_ref[...], v, (1, 1)) - di[0][:, None])
    return _uncap(ds, powers, problem), k


def _dkv_kernel(
    visits: Visits,
    inputs: Inputs,
    outputs: _KeyGradients,
    sums: _KeyGradients,
    *,
    problem: Problem,
    schedule: Plan,
) -> None:
    """A visit: add what a block of queries gives to ``dk`` and ``dv``."""
    step, flags = pl.program_id(1), visits.flags
    first_q, first_kv = visits.column[step] * problem.block_q, visits.row[step] * problem.block_kv
    is_first = flags[step] & FIRST != 0
    start = (first_q, first_kv)
    add_block = functools.partial(_add_queries, inputs, sums, problem, start, is_first)
    for_each_kind(schedule, flags[step], add_block)

    @pl.when(flags[step] & LAST != 0)
    def _write() -> None:
        outputs.dk[...] = (problem.scale * sums.dk[...]).astype(outputs.dk.dtype)
        outputs.dv[...] = sums.dv[...].astype(outputs.dv.dtype)

    clear_unseen(schedule, visits, step, *outputs)


def _add_queries(
    inputs: Inputs,
    sums: _KeyGradients,
    problem: Problem,
    start: tuple[jax.Array, jax.Array],
    is_first: jax.Array,
    partial: bool,
) -> None:
    """Add ``p^T do`` to ``dv`` and ``ds^T q`` to ``dk``, from transposed scores."""
    assert inputs.saved is not None
    do_ref, lse, di = inputs.saved
    q, do = (inside(ref, start[0], problem.q_len) for ref in (inputs.q, do_ref))
    powers = exponents(product(inputs.k[...], q, (1, 1)), problem)
    seen = hide(powers, inputs, problem, key_axis=0, start=start, partial=partial)
    weights = jnp.exp2(seen - lse[...])
    dv_old = jnp.where(is_first, 0.0, sums.dv[...])
    sums.dv[...] = dv_old + product(weights.astype(do.dtype), do, (1, 0))
    ds = _uncap(weights * (product(inputs.v[...], do, (1, 1)) - di[...]), powers, problem)
    dk_old = jnp.where(is_first, 0.0, sums.dk[...])
    sums.dk[...] = dk_old + product(ds.astype(q.dtype), q, (1, 0))


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
    operands = (q, k, v, q_segments, kv_segments, Saved(do, lse, di), problem)
    return _dq(*operands), *_dkv(*operands)


def _dq(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    saved: Saved,
    problem: Problem,
) -> jax.Array:
    """``dq``, ``(h, q_len, d)``."""
    heads, _, d = q.shape
    layout = Layout(problem)
    schedule = layout.plan()
    specs, inputs = layout.inputs(schedule, q, k, v, q_segments, kv_segments, saved)
    return pl.pallas_call(
        functools.partial(_dq_kernel, problem=problem, schedule=schedule),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads, schedule.steps),
            in_specs=[specs],
            out_specs=layout.queries(d),
            scratch_shapes=[pltpu.VMEM((problem.block_q, d), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(layout.visits(schedule), inputs)


def _dkv(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    saved: Saved,
    problem: Problem,
) -> tuple[jax.Array, jax.Array]:
    """``dk``, ``(h / g, kv_len, d)``, and ``dv``, ``(h / g, kv_len, d_v)``."""
    kv_heads, d, d_v = k.shape[0], k.shape[2], v.shape[2]
    layout = Layout(problem, by_keys=True)
    schedule = layout.plan()
    specs, inputs = layout.inputs(schedule, q, k, v, q_segments, kv_segments, saved)
    [outputs] = pl.pallas_call(
        functools.partial(_dkv_kernel, problem=problem, schedule=schedule),
        out_shape=[
            _KeyGradients(
                jax.ShapeDtypeStruct(k.shape, k.dtype), jax.ShapeDtypeStruct(v.shape, v.dtype)
            )
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(kv_heads, schedule.steps),
            in_specs=[specs],
            out_specs=[_KeyGradients(layout.keys(d), layout.keys(d_v))],
            scratch_shapes=[
                _KeyGradients(
                    pltpu.VMEM((problem.block_kv, d), jnp.float32),
                    pltpu.VMEM((problem.block_kv, d_v), jnp.float32),
                )
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(layout.visits(schedule), inputs)
    return outputs.dk, outputs.dv
