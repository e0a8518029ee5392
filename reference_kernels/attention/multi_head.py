"""Multi-head attention and its batches: ``flash_attention`` under ``jax.vmap``.

Shapes: ``mha`` takes ``q (h, q_len, d)``, ``k (h, kv_len, d)``, ``v (h, kv_len, d_v)`` and
``batched_mha`` the same with a batch in front, ``(b, h, ...)``. Dtypes as ``flash_attention``.

``vmap`` of a ``pallas_call`` adds a dimension to the front of its grid and of every block, so the
kernel of one head becomes that of ``b h`` heads without a change: the heads are further grid steps,
and the pipeline of copies runs on from one to the next. On a chip with two cores they share the
heads, so the queries of one head stay together (``split_queries=False``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels._gaps import BATCHES, without
from reference_kernels.attention._operands import (
    SegmentIds,
    check_qkv,
    check_segment_ids,
    reference,
)
from reference_kernels.attention.flash_attention import EQUIVALENT, flash_attention


def mha(q: jax.Array, k: jax.Array, v: jax.Array, **settings: Any) -> jax.Array:
    """Attention of ``h`` heads. It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries, ``(h, q_len, d)``.
      k: keys, ``(h, kv_len, d)``.
      v: values, ``(h, kv_len, d_v)``.
      **settings: ``causal``, ``scale``, ``segment_ids``, ``block_q`` and ``block_kv`` of
        ``flash_attention``, the same for all heads.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    check_qkv(q, k, v, front="h")
    one_head = functools.partial(flash_attention, split_queries=False, **settings)
    return jax.vmap(one_head)(q, k, v)


def batched_mha(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    segment_ids: SegmentIds | None = None,
    **settings: Any,
) -> jax.Array:
    """Attention of ``b`` batches of ``h`` heads. It can be differentiated likewise.

    Args:
      q: queries, ``(b, h, q_len, d)``.
      k: keys, ``(b, h, kv_len, d)``.
      v: values, ``(b, h, kv_len, d_v)``.
      segment_ids: those of ``flash_attention`` for each batch, ``(b, q_len)`` and ``(b, kv_len)``.
      **settings: ``causal``, ``scale``, ``block_q`` and ``block_kv`` of ``flash_attention``.

    Returns:
      ``(b, h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    sizes = check_qkv(q, k, v, front="b h")
    if segment_ids is not None:
        check_segment_ids(segment_ids, sizes, front="b")

    def one_batch(q: jax.Array, k: jax.Array, v: jax.Array, ids: SegmentIds | None) -> jax.Array:
        return mha(q, k, v, segment_ids=ids, **settings)

    return jax.vmap(one_batch)(q, k, v, segment_ids)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


SPEC_MHA = KernelSpec(
    name="mha",
    kernel=mha,
    backends=without(BATCHES),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "h q d, h k d, h k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"h": [1, 3], "q": [17, 33], "k": [33, 16, 53], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({1: 1, 2: 1}, when=_is_not_causal),
    ),
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "h q d, h k d, h k e",
            dtype="bfloat16",
            dims={"h": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)

SPEC_BATCHED = KernelSpec(
    name="batched_mha",
    kernel=batched_mha,
    backends=without(BATCHES),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "b h q d, b h k d, b h k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"b": [1, 2], "h": [1, 3], "q": [1, 15, 17], "k": [1, 16, 33], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    differentiable=(0, 1, 2),
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({0: 1, 1: 1, 2: 1}, output=1),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
    ),
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "b h q d, b h k d, b h k e",
            dtype="bfloat16",
            dims={"b": 4, "h": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)
