"""Flash attention of one head: online softmax over blocks of keys, with masks and a soft cap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

#: What a score is where nothing is to be seen: finite, so that no difference of two is NaN.
_LOWEST = -1e30


def flash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    cap: float = 0.0,
    block: int = 8,
    wrong: str = "",
) -> jax.Array:
    """Attention of q ``(q_len, d)`` over k and v ``(kv_len, d)``; a query that sees none gets 0.

    ``mask`` is bool ``(q_len, kv_len)``, ``window`` how many of the latest keys a causal query
    sees (0 for all), and scores become ``cap * tanh(scores / cap)``.
    """
    (q_len, d), kv_len = q.shape, len(k)
    steps = pl.cdiv(kv_len, block)
    beyond = steps * block - kv_len
    k, v = (jnp.pad(x, ((0, beyond), (0, 0))) for x in (k, v))
    seen = jnp.ones((q_len, kv_len), bool) if mask is None else mask
    seen = jnp.pad(seen, ((0, 0), (0, beyond)), constant_values=True).astype(jnp.int32)

    def body(
        q_ref: Any, k_ref: Any, v_ref: Any, seen_ref: Any, o_ref: Any, m_ref: Any, l_ref: Any,
        acc_ref: Any,
    ) -> None:  # fmt: skip
        step = pl.program_id(1)

        @pl.when(step == 0)
        def _clear() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        first = jnp.logical_and(step == 0, pl.program_id(0) == 0)

        @pl.when(first if wrong == "cleared once" else step == 0)
        def _clear_sum() -> None:
            m_ref[...] = jnp.full_like(m_ref, _LOWEST)
            l_ref[...] = jnp.zeros_like(l_ref)

        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            precision="highest",
            preferred_element_type=jnp.float32,
        )
        s *= d**-0.5
        if cap and wrong != "cap after mask":
            s = cap * jnp.tanh(s / cap)
        query = pl.program_id(0) * block + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        here = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        key = step * block + here
        visible = seen_ref[...] != 0
        if causal and wrong == "or for and":
            visible |= key <= query + kv_len - q_len
        elif causal:
            visible &= key <= query + kv_len - q_len
        if window:
            visible &= (here if wrong == "local index" else key) > query + kv_len - q_len - window
        if wrong != "padding seen":
            visible &= key < (q_len if wrong == "queries for keys" else kv_len)
        s = jnp.where(visible, s, _LOWEST)
        if cap and wrong == "cap after mask":
            s = cap * jnp.tanh(s / cap)

        m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        weights = jnp.exp(s - m)
        if wrong not in ("empty rows", "cap after mask"):
            weights = jnp.where(visible, weights, 0.0)
        rescale = jnp.exp(m_ref[...] - m)
        m_ref[...] = m
        l_ref[...] = rescale * l_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        if wrong == "narrow weights":
            weights = weights.astype(jnp.bfloat16).astype(jnp.float32)
        acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
            weights, v_ref[...].astype(jnp.float32), precision="highest"
        )

        @pl.when(step == steps - 1)
        def _divide() -> None:
            total = l_ref[...]
            o_ref[...] = (acc_ref[...] / jnp.where(total == 0, 1, total)).astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(pl.cdiv(q_len, block), steps),
        in_specs=[
            pl.BlockSpec((block, d), lambda i, j: (i, 0)),
            pl.BlockSpec((block, d), lambda i, j: (j, 0)),
            pl.BlockSpec((block, d), lambda i, j: (j, 0)),
            pl.BlockSpec((block, block), lambda i, j: (i, j)),
        ],
        out_specs=pl.BlockSpec((block, d), lambda i, j: (i, 0)),
        scratch_shapes=[
            pltpu.VMEM((block, 1), jnp.float32),
            pltpu.VMEM((block, 1), jnp.float32),
            pltpu.VMEM((block, d), jnp.float32),
        ],
    )(q, k, v, seen)


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    cap: float = 0.0,
) -> jax.Array:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    s = jnp.dot(q, k.T, precision="highest", preferred_element_type=wide) * q.shape[1] ** -0.5
    s = cap * jnp.tanh(s / cap) if cap else s
    query = jnp.arange(len(q))[:, None] + len(k) - len(q)
    key = jnp.arange(len(k))
    visible = jnp.ones(s.shape, bool) if mask is None else mask
    visible = visible & (key <= query) if causal else visible
    visible = visible & (key > query - window) if window else visible
    weights = jnp.where(visible, jnp.exp(s - jnp.max(s, axis=1, keepdims=True)), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    return jnp.dot(weights, v.astype(wide), precision="highest").astype(q.dtype)


def _qkv(dtype: Any = "float32") -> Any:
    dims = {"q": [5, 13], "k": [7, 21], "d": 8}
    return pst.arrays("q d, k d, k d", dtype=dtype, dims=dims)


_PLAIN = pst.arguments(_qkv(), tuning={"block": 8})


def padding_seen(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 8) -> jax.Array:
    """Keys that pad the last block are zeros, and get their weight."""
    return flash(q, k, v, block=block, wrong="padding seen")


SPEC_PADDING_SEEN = KernelSpec(
    name="padding_seen",
    kernel=padding_seen,
    reference=reference,
    inputs=_PLAIN,
    family="attention",
    backends=INTERPRETERS,
)
SPEC_PADDING_SEEN_RIGHT = twin(SPEC_PADDING_SEEN, flash)


def queries_for_keys(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 8) -> jax.Array:
    """Keys are masked by the number of queries: right in every test with as many of both."""
    return flash(q, k, v, block=block, wrong="queries for keys")


SPEC_QUERIES_FOR_KEYS = KernelSpec(
    name="queries_for_keys",
    kernel=queries_for_keys,
    reference=reference,
    inputs=_PLAIN,
    family="attention",
    backends=INTERPRETERS,
)


def cleared_once(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 8) -> jax.Array:
    """Maximum and sum of weights are cleared for the first block of queries only."""
    return flash(q, k, v, block=block, wrong="cleared once")


SPEC_CLEARED_ONCE = KernelSpec(
    name="cleared_once",
    kernel=cleared_once,
    reference=reference,
    inputs=_PLAIN,
    family="attention",
    backends=INTERPRETERS,
)


def narrow_weights(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int = 8) -> jax.Array:
    """Weights are rounded to bfloat16 for the second product, with float32 inputs, too."""
    return flash(q, k, v, block=block, wrong="narrow weights")


SPEC_NARROW_WEIGHTS = KernelSpec(
    name="narrow_weights",
    kernel=narrow_weights,
    reference=reference,
    inputs=pst.arguments(_qkv(pst.floats("bfloat16", "float32")), tuning={"block": 8}),
    family="attention",
    backends=INTERPRETERS,
)
SPEC_NARROW_WEIGHTS_RIGHT = twin(SPEC_NARROW_WEIGHTS, flash)


def local_index(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool, window: int, block: int = 8
) -> jax.Array:
    """The window is compared with the number of a key in its block, not in the sequence."""
    return flash(q, k, v, causal=causal, window=window, block=block, wrong="local index")


SPEC_LOCAL_INDEX = KernelSpec(
    name="local_index",
    kernel=local_index,
    reference=reference,
    inputs=pst.arguments(_qkv(), options={"causal": True, "window": 3}, tuning={"block": 8}),
    family="attention",
    backends=INTERPRETERS,
)
SPEC_LOCAL_INDEX_RIGHT = twin(SPEC_LOCAL_INDEX, flash)


def _masked(options: dict[str, Any], empty_rows: bool) -> Any:
    """Calls with a mask drawn for the sizes."""
    return pst.arguments(
        _qkv(),
        then=lambda drawn: {
            "mask": pst.masks(
                drawn.recipe["q"],
                drawn.recipe["k"],
                kinds=("random", "empty-rows", "local") if empty_rows else ("random", "local"),
                block=8,
                empty_rows=empty_rows,
            )
        },
        options=options,
        tuning={"block": 8},
    )


def or_for_and(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, causal: bool, block: int = 8
) -> jax.Array:
    """A key is seen if the mask or the causal order says so, not if both do."""
    return flash(q, k, v, mask, causal=causal, block=block, wrong="or for and")


SPEC_OR_FOR_AND = KernelSpec(
    name="or_for_and",
    kernel=or_for_and,
    reference=reference,
    inputs=_masked({"causal": True}, empty_rows=True),
    family="attention",
    backends=INTERPRETERS,
)
SPEC_OR_FOR_AND_RIGHT = twin(SPEC_OR_FOR_AND, flash)


def empty_rows(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, block: int = 8
) -> jax.Array:
    """A query that sees no key gets the mean of all values: every difference of scores is 0."""
    return flash(q, k, v, mask, block=block, wrong="empty rows")


SPEC_EMPTY_ROWS = KernelSpec(
    name="empty_rows",
    kernel=empty_rows,
    reference=reference,
    inputs=_masked({}, empty_rows=True),
    family="attention",
    backends=INTERPRETERS,
)


def cap_after_mask(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, cap: float, block: int = 8
) -> jax.Array:
    """The soft cap comes after the mask, and makes hidden keys visible again."""
    return flash(q, k, v, mask, cap=cap, block=block, wrong="cap after mask")


SPEC_CAP_AFTER_MASK = KernelSpec(
    name="cap_after_mask",
    kernel=cap_after_mask,
    reference=reference,
    inputs=_masked({"cap": 5.0}, empty_rows=True),
    family="attention",
    backends=INTERPRETERS,
)
SPEC_CAP_AFTER_MASK_RIGHT = twin(SPEC_CAP_AFTER_MASK, flash)


def grouped_heads(q: jax.Array, k: jax.Array, v: jax.Array, *, wrong: str = "") -> jax.Array:
    """Attention of q ``(heads, q_len, d)``, where consecutive heads share one of k and v."""
    heads, _, d = q.shape
    each = heads // len(k)

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        s = jax.lax.dot_general(
            q_ref[0], k_ref[0], (((1,), (1,)), ((), ())), precision="highest"
        ) * (d**-0.5)
        o_ref[0] = jnp.dot(jax.nn.softmax(s, axis=1), v_ref[0], precision="highest")

    def shared(head: Any) -> tuple[Any, int, int]:
        return (jax.lax.rem(head, len(k)) if wrong else head // each), 0, 0

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(heads,),
        in_specs=[
            pl.BlockSpec((1, *q.shape[1:]), lambda head: (head, 0, 0)),
            pl.BlockSpec((1, *k.shape[1:]), shared),
            pl.BlockSpec((1, *k.shape[1:]), shared),
        ],
        out_specs=pl.BlockSpec((1, *q.shape[1:]), lambda head: (head, 0, 0)),
    )(q, k, v)


def grouped_heads_reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    k, v = (jnp.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    s = jnp.einsum("hqd,hkd->hqk", q, k, precision="highest") * q.shape[2] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(s, axis=2), v, precision="highest")


def heads_dealt_out(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Heads of keys are dealt out in turns (h % 2), not to neighbours (h // 2)."""
    return grouped_heads(q, k, v, wrong="dealt out")


SPEC_HEADS_DEALT_OUT = KernelSpec(
    name="heads_dealt_out",
    kernel=heads_dealt_out,
    reference=grouped_heads_reference,
    inputs=pst.arrays(
        "h q d, g k d, g k d; h = g*r",
        dtype="float32",
        dims={"g": [1, 2], "r": [1, 2], "q": [5, 8], "k": 7, "d": 4},
    ),
    family="attention",
    backends=INTERPRETERS,
)
SPEC_HEADS_DEALT_OUT_RIGHT = twin(SPEC_HEADS_DEALT_OUT, grouped_heads)
