"""Specs of ``paged_attention``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted, Relation
from reference_kernels.attention.paged_attention import paged_attention, reference


def _ignored(
    q: Any, k_pages: Any, v_pages: Any, lengths: Any, page_indices: Any, *scales: Any, **_: Any
) -> tuple[Any, ...]:
    """Keys and values that no sequence has, and entries of the page table beyond the lengths."""
    _, num_pages, page_size, _ = k_pages.shape
    pages_per_sequence = page_indices.shape[1]
    position = np.arange(pages_per_sequence * page_size).reshape(1, pages_per_sequence, page_size)
    has = position < np.asarray(lengths)[:, None, None]
    used = np.zeros((num_pages, page_size), bool)
    np.logical_or.at(used, np.asarray(page_indices), has)
    pages = np.broadcast_to(~used[None, :, :, None], k_pages.shape)
    of_scales = np.broadcast_to(~used[:, None, :], (num_pages, k_pages.shape[0], page_size))
    return None, pages, pages, None, ~has.any(axis=2), *(of_scales for _ in scales)


def _moved_pages(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """The same pages elsewhere."""
    q, k_pages, v_pages, lengths, table, *scales = arguments.args
    order = rng.permutation(k_pages.shape[1])
    place = np.argsort(order).astype(table.dtype)
    args = (q, k_pages[:, order], v_pages[:, order], lengths, place[table])
    return dataclasses.replace(arguments, args=(*args, *(each[order] for each in scales)))


def _lengths_and_table(drawn: Any) -> dict[str, Any]:
    batch, num_pages, page_size = drawn[0].shape[0], *drawn[1].shape[1:3]
    return {
        "lengths": pst.lengths(batch, max_length=_PAGES_EACH * page_size, around=page_size),
        "page_indices": pst.page_tables(batch, pages_each=_PAGES_EACH, pages=num_pages),
    }


def _with_scales_last(arguments: pst.Arguments) -> pst.Arguments:
    q, k_pages, v_pages, k_scales, v_scales, lengths, table = arguments.args
    args = (q, k_pages, v_pages, lengths, table, k_scales, v_scales)
    return dataclasses.replace(arguments, args=args, kin=None)


#: Pages of a sequence in the drawn calls: the last block of 2 has one page, that of 3 two.
_PAGES_EACH = 5

_DIMS = {"b": 3, "h": 2, "n": [4, 13], "d": 24}
_PAGES_PER_BLOCK = st.sampled_from([2, 3])


def _typical(dtype: str, page_size: int, **tuning: int) -> pst.Arguments:
    """64 sequences of up to 4096 keys, 32 heads of queries and 8 of keys."""
    int8 = dtype == "int8"
    shapes = "b q d, h n p d, h n p d, b, b s" + ", n h p, n h p" * int8
    dims = {"b": 64, "q": 32, "d": 128, "h": 8, "n": 2**17 // page_size, "p": page_size}
    dtypes = ("bfloat16", dtype, dtype, "int32", "int32") + ("float32",) * 2 * int8
    return pst.shaped(shapes, dtype=dtypes, dims=dims | {"s": 4096 // page_size}, tuning=tuning)


_SHARED: dict[str, Any] = {
    "kernel": paged_attention,
    "reference": reference,
    "ignored": _ignored,
    "unreached": dict.fromkeys(
        ("jnp.minimum(count, block_pages) none", "count none"),
        "a block that the kernel fetches has a page: sequences without keys are passed over",
    ),
    "vmappable": False,  # vmap gives operands in HBM blocks, which the TPU interpreter refuses
}

SPEC = KernelSpec(
    name="paged_attention",
    inputs=pst.arguments(
        pst.arrays(
            "b q d, h n p d, h n p d; q = h*g",
            dtype=pst.floats("bfloat16", "float32"),
            dims=_DIMS | {"g": [1, 3], "p": 8},
        ),
        then=_lengths_and_table,
        options={"soft_cap": st.sampled_from([None, 3.0])},
        tuning={"pages_per_block": _PAGES_PER_BLOCK, "heads_per_block": st.sampled_from([None, 1])},
    ),
    relations=(
        Linear(2),
        Permuted({0: 0, 3: 0, 4: 0}, output=0),
        Relation("pages elsewhere", _moved_pages),
    ),
    batch_axes=(0, None, None, 0, 0),
    typical=(_typical("bfloat16", 16), _typical("bfloat16", 64, heads_per_block=4)),
    **_SHARED,
)

SPEC_INT8 = KernelSpec(
    name="paged_attention_int8",
    inputs=pst.arguments(
        pst.arrays(
            "b q d, h n p d, h n p d, n h p, n h p; q = h*g",
            dtype=("bfloat16", "int8", "int8", "float32", "float32"),
            dims=_DIMS | {"g": 8, "p": 32},
        ),
        then=_lengths_and_table,
        options={"scale": st.sampled_from([None, 0.5])},
        tuning={"pages_per_block": _PAGES_PER_BLOCK},
    ).map(_with_scales_last),
    relations=(
        Linear(6),
        Permuted({0: 0, 3: 0, 4: 0}, output=0),
        Relation("pages elsewhere", _moved_pages),
    ),
    batch_axes=(0, None, None, 0, 0, None, None),
    equivalent=tuple(
        EquivalentMutant(
            operator=operator,
            change=change,
            source="return jnp.where(key < keys, row, 0.0)",
            caller="scores = scores * _row_of_scales(",
            reason="scores beyond the last key are replaced after",
        )
        for operator, change in (("mask", "dropped"), ("comparison", "lt -> le"))
    ),
    typical=(_typical("int8", 32),),
    **_SHARED,
)
