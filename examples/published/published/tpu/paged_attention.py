"""`paged_attention`: one query a sequence, keys and values in pages."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention, quantization_utils

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear, Permuted
from pytest_pallas import strategies as pst

PAGES_EACH = 4


def reference(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    lengths: Any,
    page_indices: Any,
    *,
    attn_logits_soft_cap: float | None = None,
) -> Any:
    """Softmax over the keys that a sequence has; 0 where it has none."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    heads, _, page, width = k_pages.shape
    batch = q.shape[0]

    def gathered(pages: Any) -> Any:
        return pages[:, page_indices].reshape(heads, batch, -1, width)

    rows = q.reshape(batch, heads, -1, width)
    scores = jnp.einsum("bhgd,hbtd->bhgt", rows, gathered(k_pages), preferred_element_type=wide)
    if attn_logits_soft_cap is not None:
        scores = attn_logits_soft_cap * jnp.tanh(scores / attn_logits_soft_cap)
    has = jnp.arange(page * page_indices.shape[1]) < lengths[:, None]
    scores = jnp.where(has[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    weights = jnp.where(has[:, None, None], weights, 0)  # a row without keys is NaN
    found = jnp.einsum("bhgt,hbtd->bhgd", weights, gathered(v_pages), preferred_element_type=wide)
    return found.reshape(q.shape).astype(q.dtype)


def attend(q: Any, k: Any, v: Any, lengths: Any, table: Any, **options: Any) -> Any:
    options.setdefault("pages_per_compute_block", 2)
    return paged_attention(q, k, v, lengths, table, **options)


def _ignored(q: Any, k: Any, v: Any, lengths: Any, table: Any, **options: Any) -> Any:
    """Keys and values that no sequence has."""
    del q, options
    _, pages, page, _ = k.shape
    position = np.arange(table.shape[1] * page).reshape(1, -1, page)
    used = np.zeros((pages, page), bool)
    np.logical_or.at(used, np.asarray(table), position < np.asarray(lengths)[:, None, None])
    unused = np.broadcast_to(~used[None, :, :, None], k.shape)
    return None, unused, unused, None, None


def _first_length(call: pst.Arguments, length: int) -> pst.Arguments:
    """The same call, whose first sequence has this length."""
    q, k, v, lengths, table = call.args
    lengths = np.concatenate([[length], lengths[1:]]).astype(np.int32)
    return dataclasses.replace(call, args=(q, k, v, lengths, table), kin=None)


def _inputs(
    *, dtype: Any, least: int = 1, groups: list[int], values: Any = None, **tuning: Any
) -> Any:
    return pst.arguments(
        pst.arrays(
            "b q d, h n p d, h n p d; q = h*g",
            dtype=dtype,
            dims={"b": [1, 4], "h": 2, "g": groups, "n": [5, 16], "p": [8, 16], "d": 128},
            **({} if values is None else {"values": values}),
        ),
        then=lambda drawn: {
            "lengths": pst.lengths(
                drawn.recipe["b"],
                max_length=PAGES_EACH * drawn.recipe["p"],
                min_length=least,
                around=2 * drawn.recipe["p"],
            ),
            "page_indices": pst.page_tables(
                drawn.recipe["b"], pages_each=PAGES_EACH, pages=drawn.recipe["n"]
            ),
        },
        options={"attn_logits_soft_cap": st.sampled_from([None, 3.0])},
        tuning={"pages_per_compute_block": st.sampled_from([1, 2, 4])} | tuning,
    )


def _spec(name: str, inputs: Any, *, chips: Any = TPU, **rest: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=attend,
        reference=reference,
        backends=chips,
        inputs=inputs,
        vmappable=False,
        **rest,
    )


#: The number of the buffer and a flag go from one grid step to the next in operands.
STATE = fails("tpu-sim", "scalars that are passed on are operands, and written to", "immutability")
RELATIONS = (Linear(2), Permuted({0: 0, 3: 0, 4: 0}, output=0))

#: The kernel rounds keys and values to bfloat16, whatever they are.
PAGED_ATTENTION = _spec(
    "paged_attention",
    _inputs(dtype="bfloat16", least=0, groups=[1, 4]),
    relations=RELATIONS,
    xfail=STATE,
)
PAGED_ATTENTION_EIGHT = _spec(
    "paged_attention_eight",
    _inputs(dtype="bfloat16", least=0, groups=[8]),
    xfail=STATE,
)
PAGED_ATTENTION_FLOAT32 = _spec(
    "paged_attention_float32",
    _inputs(dtype="float32", groups=[1, 8], values="normal"),
    checks=("forward",),
    xfail=fails("tpu-sim", "keys and values in float32 are rounded to bfloat16", "forward"),
)
PAGED_ATTENTION_GRID = _spec(
    "paged_attention_grid",
    _inputs(dtype="bfloat16", groups=[1, 4], inline_seq_dim=False),
    xfail=STATE,
)
PAGED_ATTENTION_GRID_EMPTY = _spec(
    "paged_attention_grid_empty",
    _inputs(dtype="bfloat16", groups=[1, 4], inline_seq_dim=False).map(
        functools.partial(_first_length, length=0)
    ),
    checks=("forward",),
    xfail=fails("tpu-sim", "the rows of a sequence of length 0 are never written", "forward"),
)
PAGED_ATTENTION_PADDING = _spec(
    "paged_attention_padding",
    _inputs(dtype="bfloat16", groups=[1]).map(functools.partial(_first_length, length=1)),
    ignored=_ignored,
    checks=("padding",),
    xfail=fails("tpu-sim", "a NaN beyond a sequence's length reaches its output", "padding"),
)
PAGED_ATTENTION_MEGACORE = _spec(
    "paged_attention_megacore",
    _inputs(dtype="bfloat16", groups=[1, 4], megacore_mode="kv_head"),
    checks=("forward",),
    chips=("tpu-sim:v4", "tpu-sim:v5p"),
)


def _quantized(
    q: Any, k: Any, v: Any, k_scales: Any, v_scales: Any, lengths: Any, table: Any, **options: Any
) -> Any:
    tensor = quantization_utils.QuantizedTensor
    return attend(q, tensor(k, k_scales), tensor(v, v_scales), lengths, table, **options)


def _quantized_reference(
    q: Any, k: Any, v: Any, k_scales: Any, v_scales: Any, lengths: Any, table: Any, **options: Any
) -> Any:
    """The scale of a row of int8 stands for 127.5."""
    k, v = (x.astype(s.dtype) * s / 127.5 for x, s in ((k, k_scales), (v, v_scales)))
    return reference(q, k, v, lengths, table, **options)


PAGED_ATTENTION_INT8 = KernelSpec(
    name="paged_attention_int8",
    kernel=_quantized,
    reference=_quantized_reference,
    backends=TPU,
    vmappable=False,
    inputs=pst.arguments(
        pst.arrays(
            "b q d, h n p d, h n p d, h n p one, h n p one; q = h*g, one = 1",
            dtype=("float32", "int8", "int8", "float32", "float32"),
            dims={"b": [1, 4], "h": 2, "g": [1, 8], "n": [5, 16], "p": 32, "d": 128},
            values="normal",
        ),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["b"], max_length=128, min_length=1, around=64),
            "page_indices": pst.page_tables(
                drawn.recipe["b"], pages_each=4, pages=drawn.recipe["n"]
            ),
        },
        tuning={"pages_per_compute_block": st.sampled_from([1, 2, 4])},
    ),
    checks=("forward", "determinism", "jit"),
)
