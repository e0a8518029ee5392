"""`ragged_paged_attention`: packed queries of many sequences, keys and values in pages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

from published.failures import TPU, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

PAGES_EACH, SEQUENCES = 4, 4

#: The sequence and the buffer of the next grid step are in an operand.
STATE = fails("tpu-sim", "scalars that are passed on are operands, and written to", "immutability")


def attend(
    q: Any, pages: Any, kv_lens: Any, table: Any, starts: Any, count: Any, **options: Any
) -> Any:
    """The rows of tokens; what is after the last token is nobody's, and 0 here."""
    options.setdefault("num_kv_pages_per_block", 2)
    options.setdefault("num_queries_per_block", 8)
    found = ragged_paged_attention(q, pages, kv_lens, table, starts, count, **options)
    tokens = jnp.asarray(starts)[count[0]]
    return jnp.where((jnp.arange(q.shape[0]) < tokens)[:, None, None], found, 0)


def reference(
    q: Any,
    pages: Any,
    kv_lens: Any,
    table: Any,
    starts: Any,
    count: Any,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Any:
    """Each token sees the keys up to its own position; the last token is the last key."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    token = jnp.arange(q.shape[0])
    count = count[0]
    sequence = jnp.searchsorted(starts[1:], token, side="right")
    valid = sequence < count
    sequence = jnp.minimum(sequence, table.shape[0] - 1)
    position = kv_lens[sequence] - (starts[sequence + 1] - token)
    gathered = pages[table].reshape(table.shape[0], -1, *pages.shape[2:])[sequence]
    repeats = q.shape[1] * 2 // pages.shape[2]
    k, v = (jnp.repeat(gathered[:, :, side::2], repeats, axis=2) for side in (0, 1))
    k = k if k_scale is None else (k.astype(wide) * k_scale).astype(q.dtype)
    v = v if v_scale is None else (v.astype(wide) * v_scale).astype(q.dtype)
    scores = jnp.einsum("thd,tkhd->thk", q, k, preferred_element_type=wide) * sm_scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    key = jnp.arange(k.shape[1])
    seen = key <= position[:, None]
    if sliding_window is not None:
        seen &= key > position[:, None] - sliding_window
    seen &= valid[:, None]
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), axis=-1)
    weights = jnp.where(seen[:, None], weights, 0)
    return jnp.einsum("thk,tkhd->thd", weights, v, preferred_element_type=wide).astype(q.dtype)


def _ignored(q: Any, pages: Any, kv_lens: Any, table: Any, *_: Any, **options: Any) -> Any:
    """Keys and values that no sequence has."""
    del q, options
    position = np.arange(table.shape[1] * pages.shape[1]).reshape(1, -1, pages.shape[1])
    used = np.zeros(pages.shape[:2], bool)
    np.logical_or.at(used, np.asarray(table), position < np.asarray(kv_lens)[:, None, None])
    return None, np.broadcast_to(~used[:, :, None, None], pages.shape), None, None, None, None


@st.composite
def _call(draw: Any, arrays: Any, *, options: dict[str, Any], without: str) -> pst.Arguments:
    """Some sequences with queries and keys; tokens and sequences may be left over.

    Of the first sequences, ``without`` says what one of them lacks: ``"queries"`` (it is not the
    last one), ``"keys"`` (and queries); that the last one lacks queries, behind whole blocks
    (``"last queries"``); or that there are no ``"sequences"``.
    """
    drawn = draw(arrays)
    dims = drawn.recipe
    longest, most = PAGES_EACH * dims["p"], dims["t"]
    count = draw(st.integers(2 if without else 1, SEQUENCES)) if without != "sequences" else 0
    sizes, lens = np.zeros(SEQUENCES, np.int32), np.zeros(SEQUENCES, np.int32)
    for each in range(count):
        sizes[each] = draw(st.integers(1, max(1, min(most // count, longest))))
        lens[each] = draw(st.integers(int(sizes[each]), longest))
    if without in ("queries", "keys"):
        lacking = draw(st.integers(0, count - (2 if without == "queries" else 1)))
        sizes[lacking] = 0
        if without == "keys":
            lens[lacking] = 0
    if without == "last queries":
        sizes[:count] = [*[min(most // count, longest) // 8 * 8] * (count - 1), 0]
        lens[:count] = np.maximum(lens[:count], np.minimum(sizes[:count], longest))
    table = draw(pst.page_tables(SEQUENCES, pages_each=PAGES_EACH, pages=dims["n"]))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    tuning = {
        "num_kv_pages_per_block": draw(st.sampled_from([1, 2, 3])),
        "num_queries_per_block": draw(st.sampled_from([4, 8])),
    }
    chosen = {name: draw(strategy) for name, strategy in options.items()}
    recipe = {**dims, "sizes": sizes.tolist(), "lens": lens.tolist()}
    args = (*drawn, lens, table, starts, np.array([count], np.int32))
    return pst.Arguments(args, chosen, tuning, recipe)


def _spec(
    name: str,
    *,
    dtype: Any = ("bfloat16", "bfloat16"),
    heads: Any = (1, 2),
    without: str = "",
    options: Any = None,
    **rest: Any,
) -> KernelSpec:
    arrays = pst.arrays(
        "t q d, n p c d; c = 2*h, q = h*g",
        dtype=dtype,
        dims={"t": [5, 16, 33], "h": list(heads), "g": [1, 4], "n": [5, 16], "p": 8, "d": 128},
    )
    defaults = {
        "sm_scale": st.just(0.125),
        "sliding_window": st.sampled_from([None, 1, 9]),
        "soft_cap": st.sampled_from([None, 2.0]),
    }
    return KernelSpec(
        name=name,
        kernel=attend,
        reference=reference,
        backends=TPU,
        vmappable=False,
        inputs=_call(arrays, options=defaults if options is None else options, without=without),
        **rest,
    )


RAGGED = _spec("ragged_paged_attention", ignored=_ignored, xfail=STATE)
RAGGED_FLOAT32 = _spec("ragged_paged_attention_float32", dtype=("float32", "float32"), xfail=STATE)
RAGGED_NO_QUERIES = _spec(
    "ragged_paged_attention_no_queries",
    without="queries",
    checks=("forward", "dma", "padding"),
)
RAGGED_LAST_WITHOUT_QUERIES = _spec(
    "ragged_paged_attention_last_without_queries",
    without="last queries",
    checks=("forward",),
    xfail=fails(
        "tpu-sim",
        "the copy of the last sequence's keys is started and not waited for, as it has no queries",
        "forward",
        hardware=False,
    ),
)
RAGGED_NO_KEYS = _spec(
    "ragged_paged_attention_no_keys",
    without="keys",
    checks=("forward",),
    xfail=fails(
        "tpu-sim",
        "keys are fetched for a sequence that has none, and the next one gets them",
        "forward",
    ),
)
RAGGED_NOTHING = _spec(
    "ragged_paged_attention_nothing",
    without="sequences",
    checks=("dma",),
    xfail=fails(
        "tpu-sim", "the copy of the first keys is started and not waited for", "dma", hardware=False
    ),
)
RAGGED_INT8 = _spec(
    "ragged_paged_attention_int8",
    dtype=("bfloat16", "int8"),
    heads=(2, 4),
    options={"sm_scale": st.just(0.125), "k_scale": st.just(0.5), "v_scale": st.just(0.25)},
    checks=("forward",),
)
