"""`mqa`, `gqa` and `paged_attention`: one query a sequence, keys in parts that run at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from published.bundled import triton
from published.failures import GPU, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

bundled = triton("decode_attention")
paged = triton("paged_attention")


def _attention(q: Any, k: Any, v: Any, seen: Any, scale: float, cap: float | None = None) -> Any:
    """Of q [b, g, r, d] and k [b, t, g, d]; a row that sees no key is 0."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bgrd,btgd->bgrt", q, k, preferred_element_type=wide) * scale
    if cap is not None:
        scores = cap * jnp.tanh(scores / cap)
    seen = seen[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    weights = jnp.where(seen, weights, 0)
    found = jnp.einsum("bgrt,btgd->bgrd", weights, v, preferred_element_type=wide)
    return found.reshape(q.shape[0], -1, q.shape[-1]).astype(q.dtype)


def reference(q: Any, k: Any, v: Any, start: Any = None, length: Any = None) -> Any:
    """Keys from ``start`` on, up to ``length``; ``mqa`` has one head of keys, without an axis."""
    k, v = (x[:, :, None] if x.ndim == 3 else x for x in (k, v))
    position = jnp.arange(k.shape[1])
    seen = jnp.ones((q.shape[0], k.shape[1]), bool)
    if start is not None:
        seen &= position >= start[:, None]
    if length is not None:
        seen &= position < length[:, None]
    rows = q.reshape(q.shape[0], k.shape[2], -1, q.shape[-1])
    return _attention(rows, k, v, seen, q.shape[-1] ** -0.5)


def decode(q: Any, k: Any, v: Any, *ranges: Any, k_splits: int = 2, block_k: int = 16) -> Any:
    """The outputs in the dtype of the queries, which `DECODE_DTYPE` is about."""
    return decode_as_it_is(q, k, v, *ranges, k_splits=k_splits, block_k=block_k).astype(q.dtype)


def decode_as_it_is(q: Any, k: Any, v: Any, *ranges: Any, k_splits: int, block_k: int) -> Any:
    function = bundled.mqa if k.ndim == 3 else bundled.gqa
    return function(q, k, v, *ranges, k_splits=k_splits, block_k=block_k)


def _ranges(drawn: Any) -> Any:
    """Where the keys of each sequence start and end; none may be left."""
    batch, longest = drawn.recipe["b"], drawn.recipe["t"]
    return {
        "start": pst.lengths(batch, max_length=longest, around=16),
        "length": pst.lengths(batch, max_length=longest, around=16),
    }


DIMS = {
    "b": [1, 3],
    "g": [1, 2],
    "r": [1, 5, 16, 17],
    "h": [1, 5, 16, 17],
    "t": [64, 128],
    "d": [16, 64],
}
FLOATS = pst.floats("bfloat16", "float16", "float32")


def _spec(
    name: str,
    shapes: str,
    *,
    dtype: Any = FLOATS,
    then: Any = None,
    kernel: Any = decode,
    **rest: Any,
) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": kernel},
        reference=reference,
        backends=GPU,
        inputs=pst.arguments(
            pst.arrays(
                shapes,
                dtype=dtype,
                dims={key: each for key, each in DIMS.items() if key in shapes},
            ),
            then={} if then is None else then,
            tuning={"k_splits": st.sampled_from([2, 4]), "block_k": st.sampled_from([16, 32])},
        ),
        **rest,
    )


MQA = _spec("mqa", "b h d, b t d, b t d")
MQA_RANGES = _spec("mqa_ranges", "b h d, b t d, b t d", then=_ranges)
GQA = _spec("gqa", "b h d, b t g d, b t g d; h = g*r", then=_ranges)
DECODE_DTYPE = _spec(
    "decode_dtype",
    "b h d, b t d, b t d",
    dtype=pst.floats("bfloat16", "float16"),
    kernel=decode_as_it_is,
    checks=("dtype",),
    xfail=fails("gpu-sim", "the output is float32, of queries in 16 bits", "dtype"),
)


def attend_pages(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, *scales: Any, **options: Any
) -> Any:
    defaults: dict[str, Any] = {"k_splits": 2, "pages_per_compute_block": 2}
    return paged.paged_attention(q, k, v, table, lengths, *scales, **(defaults | options))


def pages_reference(
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    lengths: Any,
    *scales: Any,
    attn_logits_soft_cap: float | None = None,
) -> Any:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    if scales:
        k, v = (x.astype(wide) * scale[..., None] for x, scale in zip((k, v), scales, strict=True))
    heads, _, _, width = k.shape
    k, v = (jnp.moveaxis(x[:, table].reshape(heads, len(table), -1, width), 0, 2) for x in (k, v))
    seen = jnp.arange(k.shape[1]) < lengths[:, None]
    rows = q.reshape(q.shape[0], heads, -1, width)
    return _attention(rows, k, v, seen, 1.0, attn_logits_soft_cap)


def _ignored(q: Any, k: Any, v: Any, table: Any, lengths: Any, **options: Any) -> Any:
    """Keys and values that no sequence has."""
    del q, options
    _, pages, page, _ = k.shape
    position = np.arange(table.shape[1] * page).reshape(1, -1, page)
    used = np.zeros((pages, page), bool)
    np.logical_or.at(used, np.asarray(table), position < np.asarray(lengths)[:, None, None])
    unused = np.broadcast_to(~used[None, :, :, None], k.shape)
    return None, unused, unused, None, None


def _as_it_is(call: pst.Arguments) -> pst.Arguments:
    return call


def _one_key(call: pst.Arguments) -> pst.Arguments:
    """The same call, whose first sequence has one key."""
    *rest, lengths = call.args
    lengths = np.concatenate([[1], lengths[1:]]).astype(np.int32)
    return dataclasses.replace(call, args=(*rest, lengths), kin=None)


def _pages(
    name: str, *, change: Any = None, dtype: Any = FLOATS, page: Any = None, **rest: Any
) -> KernelSpec:
    tuning = rest.pop("tuning", None) or {
        "k_splits": st.sampled_from([1, 2, 4]),
        "pages_per_compute_block": st.sampled_from([2, 4]),
    }
    return KernelSpec(
        name=name,
        kernel={"gpu": attend_pages},
        reference=pages_reference,
        backends=GPU,
        inputs=pst.arguments(
            pst.arrays(
                "b h d, g n p d, g n p d; h = g*r",
                dtype=dtype,
                dims={
                    "b": [1, 3],
                    "g": [1, 2],
                    "r": [1, 5, 17],
                    "n": [5, 9],
                    "p": page or [8, 16],
                    "d": [16, 64],
                },
            ),
            then=lambda drawn: {
                "table": pst.page_tables(drawn.recipe["b"], pages_each=8, pages=drawn.recipe["n"]),
                "lengths": pst.lengths(
                    drawn.recipe["b"],
                    max_length=8 * drawn.recipe["p"],
                    around=[drawn.recipe["p"], 4 * drawn.recipe["p"]],
                ),
            },
            options={"attn_logits_soft_cap": st.sampled_from([None, 2.0])},
            tuning=tuning,
        ).map(_as_it_is if change is None else change),
        **rest,
    )


PAGED = _pages("paged_attention")
PAGED_PADDING = _pages(
    "paged_attention_padding",
    change=_one_key,
    ignored=_ignored,
    checks=("padding",),
    xfail=fails("gpu-sim", "a NaN beyond a sequence's length reaches its output", "padding"),
)

PAGED_FEW_KEYS = _pages(
    "paged_attention_few_keys",
    dtype=pst.floats("bfloat16", "float16"),
    page=8,
    tuning={"k_splits": st.sampled_from([2, 4]), "pages_per_compute_block": 1},
    checks=("forward",),
    xfail=fails("gpu-sim", "of 8 keys at a time, Triton adds up each twice", "forward"),
)


def _scales_last(call: pst.Arguments) -> pst.Arguments:
    q, k, v, k_scales, v_scales, table, lengths = call.args
    args = (q, k, v, table, lengths, k_scales, v_scales)
    return dataclasses.replace(call, args=args, kin=None)


PAGED_INT8 = KernelSpec(
    name="paged_attention_int8",
    kernel={"gpu": attend_pages},
    reference=pages_reference,
    backends=GPU,
    inputs=pst.arguments(
        pst.arrays(
            "b h d, g n p d, g n p d, g n p, g n p; h = g*r",
            dtype=("bfloat16", "int8", "int8", "float32", "float32"),
            dims={"b": [1, 3], "g": [1, 2], "r": [1, 5], "n": 5, "p": 16, "d": 32},
        ),
        then=lambda drawn: {
            "table": pst.page_tables(drawn.recipe["b"], pages_each=8, pages=5),
            "lengths": pst.lengths(drawn.recipe["b"], max_length=128, around=16),
        },
        tuning={"k_splits": st.sampled_from([1, 2]), "pages_per_compute_block": 2},
    ).map(_scales_last),
    checks=("forward", "jit", "determinism"),
)
