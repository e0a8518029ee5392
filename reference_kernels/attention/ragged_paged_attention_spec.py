"""Spec of ``ragged_paged_attention``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Relation
from reference_kernels.attention.ragged_paged_attention import ragged_paged_attention, reference


def _ignored(
    q: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_indices: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    **_: Any,
) -> tuple[Any, ...]:
    """Tokens and sequences beyond the last, keys that nobody has, unused entries of the table."""
    count = int(num_seqs[0])
    page_size = kv_pages.shape[1]
    lengths = np.where(np.arange(len(kv_lens)) < count, kv_lens, 0)
    position = np.arange(page_indices.shape[1] * page_size).reshape(1, -1, page_size)
    has = position < lengths[:, None, None]
    used = np.zeros(kv_pages.shape[:2], bool)
    np.logical_or.at(used, np.asarray(page_indices), has)
    beyond = np.arange(len(q)) >= cu_q_lens[count]
    return (
        np.broadcast_to(beyond[:, None, None], q.shape),
        np.broadcast_to(~used[:, :, None, None], kv_pages.shape),
        np.arange(len(kv_lens)) >= count,
        ~has.any(axis=2),
        np.arange(len(cu_q_lens)) > count,
        None,
    )


def _moved_pages(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """The same pages elsewhere."""
    q, kv_pages, kv_lens, table, *rest = arguments.args
    order = rng.permutation(len(kv_pages))
    table = np.argsort(order).astype(table.dtype)[table]
    return dataclasses.replace(arguments, args=(q, kv_pages[order], kv_lens, table, *rest))


def _typical(d: int) -> pst.Arguments:
    """64 sequences of up to 4,096 keys."""
    return pst.shaped(
        "t q d, n p r d, s, s e, c, one",
        dtype=("bfloat16", "bfloat16", "int32", "int32", "int32", "int32"),
        dims={"t": 2048, "q": 32, "d": d, "n": 4096, "p": 16, "r": 16, "s": 64, "e": 256}
        | {"c": 65, "one": 1},
    )


#: Sequences in the drawn calls.
_SEQS = 4


def ragged_lists(
    tokens: int, kv_pages: Any, *, pages_each: int, shared: bool = True
) -> dict[str, Any]:
    """Strategies for the lists that go with so many tokens and a cache."""
    num_pages, page_size = kv_pages.shape[:2]
    longest = pages_each * page_size
    return {
        "kv_lens": pst.lengths(_SEQS, max_length=longest, around=page_size),
        "page_indices": pst.page_tables(
            _SEQS, pages_each=pages_each, pages=num_pages, shared=shared
        ),
        # No sequence at all is one choice of the next line.
        "cu_q_lens": pst.cu_seqlens(_SEQS, total=tokens, around=16).filter(lambda ends: ends[-1]),
        "num_seqs": st.sampled_from([*[_SEQS] * 4, *range(_SEQS)]).map(
            lambda count: np.array([count], np.int32)
        ),
    }


SPEC = KernelSpec(
    name="ragged_paged_attention",
    kernel=ragged_paged_attention,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "t q d, n p r d; q = h*g, r = 2*h",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"t": [1, 23, 37, 40], "h": 2, "g": [1, 3], "n": [4, 13], "p": 8, "d": [24, 256]},
        ),
        # Blocks of 2 or 3 pages, the last not full; a window need not begin in the first.
        then=lambda drawn: ragged_lists(len(drawn[0]), drawn[1], pages_each=5),
        options={
            "soft_cap": st.sampled_from([None, 3.0]),
            # Of 3 keys the first block is often not among them.
            "sliding_window": st.sampled_from([None, 3, 5]),
            # Weights overflow unless the maximum is taken off the scores.
            "scale": st.sampled_from([None, 32.0]),
        },
        tuning={"block_q": 16, "pages_per_block": st.sampled_from([2, 3])},
    ),
    relations=(Relation("pages elsewhere", _moved_pages),),
    ignored=_ignored,
    vmappable=False,  # vmap gives operands in HBM blocks, which the TPU interpreter refuses
    typical=(_typical(128), _typical(256)),
)
