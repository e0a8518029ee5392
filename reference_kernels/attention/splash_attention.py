"""Splash attention: multi-head attention that visits only the blocks of scores a mask leaves.

``o[h] = softmax(mask(cap(scale q[h] k[h // g]^T))) v[h // g]``, where ``cap(s) = c tanh(s / c)``
and ``g`` heads of queries share one of keys.

Shapes: ``q (h, q_len, d)``, ``k (h / g, kv_len, d)``, ``v (h / g, kv_len, d_v)``,
``o (h, q_len, d_v)``. Dtypes: float32 or bfloat16, the same for all; scores and sums are float32.

Sources: "splash" is sparse flash attention (Dao et al., 2022, arXiv:2205.14135); several heads of
queries for one of keys: Shazeer, 2019 (arXiv:1911.02150) and Ainslie et al., 2023
(arXiv:2305.13245); soft caps: Gemma Team, 2024 (arXiv:2408.00118).

The mask is known before the kernel is traced, so the host lists the blocks that it leaves anything
of, row by row, and the grid walks along that list: a hidden block costs neither a product nor a
copy nor a grid step. Block numbers of each visit are scalars in SMEM that the index maps look up.
Of the blocks visited, only those that hide something compare positions; most of a long causal mask
are seen in full. A mask that is an array is kept as its different partial blocks.

The softmax is computed in powers of two, with the factor ``log2(e)`` in that of the scores. The
first visit of a row selects what it starts from, rather than storing it beforehand: on a TPU there
is one store for every few arithmetic operations. The running maximum and sum of a query stand in
all lanes of a row, so that nothing is broadcast along lanes, which is slow. The weights lie in a
buffer of their own before the second product, or the compiler would spill them at twice the size.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES, ROWS, fit, precision_for, product
from reference_kernels.attention._splash_backward import backward
from reference_kernels.attention._splash_block import (
    LOWEST,
    Inputs,
    Problem,
    Visits,
    clear_unseen,
    exponents,
    for_each_kind,
    hide,
    inside,
    widen,
)
from reference_kernels.attention._splash_mask import FIRST, LAST, ArrayMask, Mask, Plan
from reference_kernels.attention._splash_operands import Layout

#: A query sees no key after its own, aligned at the last ones.
CAUSAL = Mask(right=0)


class _Outputs(NamedTuple):
    """Blocks that the last visit of a row writes.

    Attributes:
      o: ``(block_q, d_v)``.
      lse: logarithm to base 2 of each query's sum of weights, ``(block_q, LANES)``; None if nobody
        asks for it.
    """

    o: Ref
    lse: Ref | None


class _Softmax(NamedTuple):
    """What is known of a block of queries so far, float32 in VMEM.

    Attributes:
      m: the maximum of the scores, ``(block_q, LANES)``, the same in all lanes.
      sums: of the weights, likewise.
      acc: sums of the weighted values, ``(block_q, d_v)``.
      weights: those of the visit, in the dtype of the values, ``(block_q, block_kv)``.
    """

    m: Ref
    sums: Ref
    acc: Ref
    weights: Ref


def _splash_kernel(
    visits: Visits,
    inputs: Inputs,
    outputs: _Outputs,
    softmax: _Softmax,
    *,
    problem: Problem,
    schedule: Plan,
) -> None:
    """A visit: a block of queries attends to a block of keys."""
    step, flags = pl.program_id(1), visits.flags
    first_q, first_kv = visits.row[step] * problem.block_q, visits.column[step] * problem.block_kv
    is_first, is_last = flags[step] & FIRST != 0, flags[step] & LAST != 0
    start = (first_q, first_kv)
    add_block = functools.partial(_add_block, inputs, softmax, problem, start, is_first)
    for_each_kind(schedule, flags[step], add_block)
    pl.when(is_last)(lambda: _divide(softmax, outputs))
    # The backward kernels do not read sums of queries that see nothing.
    clear_unseen(schedule, visits, step, outputs.o)


def _add_block(
    inputs: Inputs,
    softmax: _Softmax,
    problem: Problem,
    start: tuple[jax.Array, jax.Array],
    is_first: jax.Array,
    partial: bool,
) -> None:
    """Add a block of keys.

    Args:
      inputs: of the visit.
      softmax: of the queries.
      problem: what is computed.
      start: numbers of the first query and the first key.
      is_first: whether nothing has been seen before.
      partial: whether the mask hides anything.
    """
    products = product(inputs.q[...], inputs.k[...], (1, 1))
    scores = exponents(products, problem)
    scores = hide(scores, inputs, problem, key_axis=1, start=start, partial=partial)
    m_old = jnp.where(is_first, LOWEST, softmax.m[...])
    m = jnp.maximum(m_old, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2(scores - widen(m, problem.block_kv))
    softmax.weights[...] = weights.astype(softmax.weights.dtype)
    rescale = jnp.exp2(m_old - m)
    softmax.m[...] = m
    sums_old = jnp.where(is_first, 0.0, softmax.sums[...])
    softmax.sums[...] = rescale * sums_old + jnp.sum(weights, axis=1, keepdims=True)
    v = inside(inputs.v, start[1], problem.kv_len) if partial else inputs.v[...]
    acc_old = jnp.where(is_first, 0.0, softmax.acc[...])
    weighted = product(softmax.weights[...], v, (1, 0))
    softmax.acc[...] = widen(rescale, v.shape[1]) * acc_old + weighted


def _divide(softmax: _Softmax, outputs: _Outputs) -> None:
    """Divide by the sums of the weights."""
    total = softmax.sums[...]
    total = jnp.where(total == 0.0, 1.0, total)  # zero for a query that has seen no key
    scale = widen(1.0 / total, outputs.o.shape[1])
    outputs.o[...] = (softmax.acc[...] * scale).astype(outputs.o.dtype)
    if outputs.lse is not None:
        outputs.lse[...] = softmax.m[...] + jnp.log2(total)


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    problem: Problem,
    *,
    save: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """The output, and if ``save`` the logarithms to base 2 of every query's sum of weights."""
    heads, q_len, d_v = q.shape[0], q.shape[1], v.shape[2]
    block_q, block_kv = problem.block_q, problem.block_kv
    layout = Layout(problem)
    schedule = layout.plan()
    specs, inputs = layout.inputs(schedule, q, k, v, q_segments, kv_segments)
    lse = jax.ShapeDtypeStruct((heads, q_len, LANES), jnp.float32) if save else None
    [outputs] = pl.pallas_call(
        functools.partial(_splash_kernel, problem=problem, schedule=schedule),
        out_shape=[_Outputs(jax.ShapeDtypeStruct((heads, q_len, d_v), q.dtype), lse)],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads, schedule.steps),
            in_specs=[specs],
            out_specs=[_Outputs(layout.queries(d_v), layout.queries(LANES) if save else None)],
            scratch_shapes=[
                _Softmax(
                    m=pltpu.VMEM((block_q, LANES), jnp.float32),
                    sums=pltpu.VMEM((block_q, LANES), jnp.float32),
                    acc=pltpu.VMEM((block_q, d_v), jnp.float32),
                    weights=pltpu.VMEM((block_q, block_kv), v.dtype),
                )
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(layout.visits(schedule), inputs)
    return outputs.o, outputs.lse


def _attend(problem: Problem) -> Any:
    """The function of arrays for a problem, with its gradient."""

    @jax.custom_vjp
    def attend(q: Any, k: Any, v: Any, q_segments: Any, kv_segments: Any) -> jax.Array:
        return _forward(q, k, v, q_segments, kv_segments, problem, save=False)[0]

    def forward(*operands: Any) -> tuple[jax.Array, Any]:
        o, lse = _forward(*operands, problem, save=True)
        assert lse is not None
        return o, (*operands, o, lse[..., 0])

    def backward_(saved: Any, do: jax.Array) -> tuple[Any, ...]:
        return *backward(*saved, do, problem), None, None

    attend.defvjp(forward, backward_)
    return attend


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None = None,
    kv_segments: jax.Array | None = None,
    *,
    mask: Mask | ArrayMask = CAUSAL,
    scale: float | None = None,
    soft_cap: float | None = None,
    block_q: int = 512,
    block_kv: int = 512,
) -> jax.Array:
    """Attention of ``h`` heads under a mask. It can be differentiated, and batched by ``jax.vmap``.

    Args:
      q: queries, ``(h, q_len, d)``, float32 or bfloat16.
      k: keys, ``(h / g, kv_len, d)``: heads ``g i`` to ``g i + g - 1`` of queries share head ``i``.
      v: values, ``(h / g, kv_len, d_v)``.
      q_segments: the segment of each query, int32 ``(q_len,)``; a query sees only keys of its own
        segment. Both or neither.
      kv_segments: the segment of each key, int32 ``(kv_len,)``.
      mask: a ``Mask``, causal by default, or an ``ArrayMask``. It is known when the kernel is
        traced: not an array of JAX.
      scale: factor of the scores; ``d ** -0.5`` by default.
      soft_cap: scores ``s`` become ``soft_cap * tanh(s / soft_cap)`` before they are masked; None
        for no cap.
      block_q: queries in a block. For gradients a TPU wants a multiple of 128, or no less than
        ``q_len``.
      block_kv: keys in a block; with segments the same holds for it and ``kv_len``. With the
        defaults and ``d = 256`` the kernel takes 5 MB of VMEM.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``; zero for a query that sees no key.

    Raises:
      ValueError: an operand or the mask has a wrong rank, size or dtype, only one of the operands
        with segments is given, or ``soft_cap`` or a block size is not positive.
    """
    heads, q_len, d = _require.axes("q", q, "h q_len d")
    kv_heads, kv_len, k_d = _require.axes("k", k, "h/g kv_len d")
    v_heads, v_len, _ = _require.axes("v", v, "h/g kv_len d_v")
    _require.same_size("d", ("q", d), ("k", k_d))
    _require.same_size("number of heads", ("k", kv_heads), ("v", v_heads))
    _require.same_size("kv_len", ("k", kv_len), ("v", v_len))
    _require.floating("q", q)
    _require.same_dtype(q=q, k=k, v=v)
    _require.positive(block_q=block_q, block_kv=block_kv)
    _check_options(heads, kv_heads, mask, (q_len, kv_len), soft_cap)
    _check_segments(q_segments, kv_segments, (q_len, kv_len))
    problem = Problem(
        mask=mask,
        q_len=q_len,
        kv_len=kv_len,
        group=heads // kv_heads,
        scale=d**-0.5 if scale is None else scale,
        soft_cap=soft_cap,
        block_q=fit(block_q, q_len, ROWS),
        block_kv=fit(block_kv, kv_len, ROWS),
    )
    return _attend(problem)(q, k, v, q_segments, kv_segments)


def _check_options(
    heads: int, kv_heads: int, mask: Any, lengths: tuple[int, int], soft_cap: float | None
) -> None:
    if heads % kv_heads:
        raise ValueError(f"q must have a multiple of the {kv_heads} heads of k, but it has {heads}")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be None or above zero, but it is {soft_cap!r}")
    if not isinstance(mask, Mask | ArrayMask):
        raise ValueError(
            f"mask must be a Mask or an ArrayMask, but it is {type(mask).__name__}; an array of "
            "numpy goes into ArrayMask(...)"
        )
    if isinstance(mask, ArrayMask):
        mask.array(*lengths)  # it raises


def _check_segments(q_segments: Any, kv_segments: Any, lengths: tuple[int, int]) -> None:
    if (q_segments is None) != (kv_segments is None):
        missing = "q_segments" if q_segments is None else "kv_segments"
        raise ValueError(f"{missing} must be given too: segments are of queries and of keys")
    for name, ids, length in zip(
        ("q_segments", "kv_segments"), (q_segments, kv_segments), lengths, strict=True
    ):
        if ids is not None and (ids.shape != (length,) or ids.dtype != jnp.int32):
            raise ValueError(
                f"{name} must be int32 of shape ({length},), but it is {ids.dtype} of shape "
                f"{ids.shape}"
            )


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_segments: jax.Array | None = None,
    kv_segments: jax.Array | None = None,
    *,
    mask: Mask | ArrayMask = CAUSAL,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> jax.Array:
    """The same with the whole matrix of scores."""
    (heads, q_len, d), (kv_heads, kv_len, _) = q.shape, k.shape
    k, v = (jnp.repeat(x, heads // kv_heads, axis=0) for x in (k, v))
    wide = jnp.promote_types(q.dtype, jnp.float32)
    highest = jax.lax.Precision.HIGHEST
    scores = jnp.einsum(
        "hqd,hkd->hqk", q, k, precision=precision_for(q.dtype), preferred_element_type=wide
    )
    scores = scores * (d**-0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    seen = jnp.asarray(mask.array(q_len, kv_len))
    if q_segments is not None and kv_segments is not None:
        seen = seen & (q_segments[:, None] == kv_segments)
    scores = jnp.where(seen, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    return jnp.einsum("hqk,hkd->hqd", weights, v.astype(wide), precision=highest).astype(q.dtype)
