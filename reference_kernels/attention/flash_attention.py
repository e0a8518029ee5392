"""Flash attention, forward, one head: ``o = softmax(scale q k^T) v`` by blocks of keys.

Shapes: ``q (q_len, d)``, ``k (kv_len, d)``, ``v (kv_len, d_v)``, ``o (q_len, d_v)``. Dtypes:
float32 or bfloat16, the same for all; scores and sums are float32.

Source: Dao et al., "FlashAttention", 2022 (arXiv:2205.14135), with the online softmax of Milakov
and Gimelshein, 2018 (arXiv:1805.02867). For a block of queries, the blocks of keys come one after
the other. The running maximum ``m``, sum ``l`` and weighted sum of values ``acc`` of each query are
kept in VMEM, and rescaled by ``exp(m_old - m_new)`` whenever a larger score turns up. So memory is
linear in the lengths.

Causal masking is aligned at the bottom right: query ``i`` sees the keys up to
``i + kv_len - q_len``, so that the last query sees all of them, as it must when the keys are a
longer past than the queries. With more queries than keys, the first ones see none: their output is
zero. Blocks of keys that no query of the block may see are neither computed nor copied.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted, Relation
from pytest_pallas.spec import KernelSpec
from reference_kernels import _require
from reference_kernels._blocks import ROWS, fit
from reference_kernels._mxu import precision_for


def _attention_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    o_ref: Any,
    m_ref: Any,
    l_ref: Any,
    acc_ref: Any,
    *,
    scale: float,
    kv_len: int,
    diagonal: int | None,
) -> None:
    block_q, block_kv = q_ref.shape[0], k_ref.shape[0]
    first_q, first_kv = pl.program_id(0) * block_q, pl.program_id(1) * block_kv

    @pl.when(pl.program_id(1) == 0)
    def _clear() -> None:
        m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def add_block() -> None:
        scores = scale * jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            precision=precision_for(q_ref.dtype),
            preferred_element_type=jnp.float32,
        )
        key = first_kv + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        visible = key < kv_len
        if diagonal is not None:
            query = first_q + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            visible = jnp.logical_and(visible, key <= query + diagonal)
        scores = jnp.where(visible, scores, -jnp.inf)

        m = jnp.maximum(m_ref[...], jnp.max(scores, axis=1, keepdims=True))
        shift = jnp.where(m == -jnp.inf, 0.0, m)  # a row that has seen nothing yet
        weights = jnp.exp(scores - shift)
        rescale = jnp.exp(m_ref[...] - shift)
        v = v_ref[...]
        if kv_len % block_kv:  # zero weights do not stop a NaN beyond the end of v
            row = first_kv + jax.lax.broadcasted_iota(jnp.int32, v.shape, 0)
            v = jnp.where(row < kv_len, v, 0)
        m_ref[...] = m
        l_ref[...] = rescale * l_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
            weights.astype(v.dtype),
            v,
            precision=precision_for(v.dtype),
            preferred_element_type=jnp.float32,
        )

    if diagonal is None:
        add_block()
    else:
        pl.when(first_kv <= first_q + block_q - 1 + diagonal)(add_block)

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _divide() -> None:
        total = l_ref[...]
        o_ref[...] = (acc_ref[...] / jnp.where(total == 0.0, 1.0, total)).astype(o_ref.dtype)


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 512,
    block_kv: int = 512,
    split_queries: bool = True,
) -> jax.Array:
    """Attention of one head. More heads and batches come by ``jax.vmap`` (see ``multi_head``).

    Args:
      q: queries, ``(q_len, d)``, float32 or bfloat16.
      k: keys, ``(kv_len, d)``.
      v: values, ``(kv_len, d_v)``.
      causal: query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores; ``d ** -0.5`` by default.
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
    q_len, d = _require.axes("q", q, "q_len d")
    kv_len, k_d = _require.axes("k", k, "kv_len d")
    v_len, d_v = _require.axes("v", v, "kv_len d_v")
    _require.same_size("d", ("q", d), ("k", k_d))
    _require.same_size("kv_len", ("k", kv_len), ("v", v_len))
    _require.floating("q", q)
    _require.same_dtype(q=q, k=k, v=v)
    _require.positive(block_q=block_q, block_kv=block_kv)

    block_q, block_kv = fit(block_q, q_len, ROWS), fit(block_kv, kv_len, ROWS)
    diagonal = kv_len - q_len if causal else None

    def kv_block(i: Any, j: Any) -> tuple[Any, int]:
        if diagonal is None:
            return j, 0
        # Blocks past the last visible one name that one again, so that nothing is copied for them.
        last_key = jnp.maximum((i + 1) * block_q - 1 + diagonal, 0)
        return jnp.minimum(j, last_key // block_kv), 0

    return pl.pallas_call(
        functools.partial(
            _attention_kernel,
            scale=d**-0.5 if scale is None else scale,
            kv_len=kv_len,
            diagonal=diagonal,
        ),
        out_shape=jax.ShapeDtypeStruct((q_len, d_v), q.dtype),
        grid=(pl.cdiv(q_len, block_q), pl.cdiv(kv_len, block_kv)),
        in_specs=[
            pl.BlockSpec((block_q, d), lambda i, j: (i, 0)),
            pl.BlockSpec((block_kv, d), kv_block),
            pl.BlockSpec((block_kv, d_v), kv_block),
        ],
        out_specs=pl.BlockSpec((block_q, d_v), lambda i, j: (i, 0)),
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, d_v), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary") if split_queries else None
        ),
    )(q, k, v)


def reference(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = False, scale: float | None = None
) -> jax.Array:
    """The same with the whole matrix of scores, for any leading axes."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = factor * jnp.einsum(
        "...qd,...kd->...qk", q, k, precision=precision_for(q.dtype), preferred_element_type=wide
    )
    if causal:
        q_len, kv_len = scores.shape[-2:]
        visible = jnp.tri(q_len, kv_len, kv_len - q_len, dtype=bool)
        scores = jnp.where(visible, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    out = jnp.einsum("...qk,...kd->...qd", weights, v.astype(wide), precision=precision_for(wide))
    return out.astype(q.dtype)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _keys_twice(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """Every key and value twice, in any order."""
    q, k, v = arguments.args
    order = rng.permutation(2 * len(k)) % len(k)
    return dataclasses.replace(arguments, args=(q, k[order], v[order]))


SPEC = KernelSpec(
    name="flash_attention",
    kernel=flash_attention,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "q d, k d, k e",
            dtype=pst.floats("bfloat16", "float32"),
            around={"q": 16, "k": 32},
            dims={"d": [8, 40, 64], "e": [16, 24, 128]},
        ),
        options={"causal": st.booleans(), "scale": st.sampled_from([None, 0.5])},
        tuning={"block_q": st.sampled_from([16, 32]), "block_kv": 16},
    ),
    relations=(
        Linear(2),
        Permuted({0: 0}, output=0, when=_is_not_causal),
        Permuted({1: 0, 2: 0}, when=_is_not_causal),
        Relation("keys twice", _keys_twice, when=_is_not_causal),
    ),
    typical=(
        pst.shaped(
            "q d, k d, k e",
            dtype="bfloat16",
            dims={"q": 2048, "k": 2048, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)
