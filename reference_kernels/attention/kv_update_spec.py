"""Spec of ``kv_update``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear
from reference_kernels.attention.kv_update import reference, update_kv_pages
from reference_kernels.attention.ragged_paged_attention_spec import ragged_lists


def _ignored(
    kv_pages: Any,
    k: Any,
    v: Any,
    kv_lens: Any,
    page_indices: Any,
    cu_q_lens: Any,
    num_seqs: Any,
) -> tuple[Any, ...]:
    """Tokens and sequences beyond the last."""
    count = int(num_seqs[0])
    beyond = np.broadcast_to((np.arange(len(k)) >= cu_q_lens[count])[:, None, None], k.shape)
    unused = np.arange(len(kv_lens)) >= count
    table = np.broadcast_to(unused[:, None], page_indices.shape)
    return None, beyond, beyond, unused, table, np.arange(len(cu_q_lens)) > count, None


_CALLS = pst.arguments(
    pst.arrays(
        "n p r d, t h d, t h d; r = 2*h",
        dtype=pst.dtypes("bfloat16", "float32", "int8"),
        dims={"n": 13, "p": [1, 8], "h": [1, 3], "d": 24, "t": [1, 33]},
    ),
    then=lambda drawn: ragged_lists(len(drawn[1]), drawn[0], pages_each=3, shared=False),
)


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Any call, or one with new sequences, whose tokens go to row 0 of the cache and onwards."""
    call = draw(_CALLS)
    if draw(st.booleans()):
        return call
    *arrays, _, table, starts, _ = call.args
    lens = np.diff(starts)
    table = (table - table[np.argmax(lens > 0), 0]) % len(arrays[0])
    lists = {
        "kv_lens": lens,
        "page_indices": table.astype(np.int32),
        "cu_q_lens": starts,
        "num_seqs": np.array([len(lens)], np.int32),
    }
    recipe = call.recipe | {name: str(values.tolist()) for name, values in lists.items()}
    return dataclasses.replace(call, args=(*arrays, *lists.values()), recipe=recipe, kin=None)


SPEC = KernelSpec(
    name="update_kv_pages",
    kernel=update_kv_pages,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    relations=(Linear((0, 1, 2)),),
    ignored=_ignored,
    vmappable=False,  # vmap gives operands in HBM blocks, which the TPU interpreter refuses
    typical=(
        pst.shaped(
            "n p r d, t h d, t h d, s, s e, c, one",
            dtype=("bfloat16", "bfloat16", "bfloat16", "int32", "int32", "int32", "int32"),
            dims={"n": 4096, "p": 16, "r": 16, "h": 8, "d": 128, "t": 2048}
            | {"s": 64, "e": 256, "c": 65, "one": 1},
        ),
    ),
)
