"""Ragged paged attention: prefill and decoding in one batch, over keys and values in pages.

Shapes: ``q (tokens, num_q_heads, d)``, the queries of all sequences one after the other;
``kv_pages (num_pages, page_size, 2 * num_kv_heads, d)``, where key and value of head ``h`` of a
token are the rows ``2 h`` and ``2 h + 1``; ``kv_lens (max_seqs,)``; ``page_indices (max_seqs,
pages_per_sequence)``; ``cu_q_lens (max_seqs + 1,)``; ``num_seqs (1,)``. Output as ``q``. Dtypes:
float32 or bfloat16, the same for all.

Sequence ``s < num_seqs`` has the queries ``cu_q_lens[s]`` to ``cu_q_lens[s + 1]`` and
``kv_lens[s]`` keys; its queries are its last tokens, so query ``r`` stands at the position ``p =
kv_lens[s] - cu_q_lens[s + 1] + r`` and

    o[r, i] = softmax(scale q[r, i] k[h]^T) v[h]    over the keys max(0, p + 1 - window) to p

with ``h = i // (num_q_heads // num_kv_heads)``. A decoding sequence has one query, a prompt all of
its tokens.

Source: Yu et al., "Orca", 2022, for batches that mix both; Kwon et al., 2023 (arXiv:2309.06180) for
pages; the online softmax is that of ``flash_attention``.

Queries come in blocks of ``block_q`` tokens, which sequences may share. The pairs (block of
queries, sequence) with something in common are listed before the kernel starts, in order, each with
the blocks of keys that its queries may see. The kernel walks along this list: while it computes one
block of keys, the pages of the next one are on their way, be it of the next sequence or of the next
block of queries. The rows of other sequences see no key of this one, which leaves their maximum,
sum and output as they are, so that one set of them serves a block of queries from end to end.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES, ROWS, fit, precision_for, product
from reference_kernels.attention._pages import (
    Softmax,
    clear,
    divided,
    lanes,
    softmax_memory,
    start_pages,
    wait_pages,
)

_SLOTS = 2


class _Schedule(NamedTuple):
    """The pairs of a block of queries and a sequence, in order; lists have room for one more.

    Attributes:
      sequence: whose each pair is, ``(blocks + max_seqs,)``.
      first_block: the first block of keys that it needs.
      end_block: the block after the last one; there is one at least.
      pairs_before: where the pairs of each block of queries begin, ``(blocks + 1,)``.
      tokens: how many tokens belong to a sequence, ``(1,)``.
    """

    sequence: Ref
    first_block: Ref
    end_block: Ref
    pairs_before: Ref
    tokens: Ref


class _Tables(NamedTuple):
    """Scalars that are there before the kernel starts.

    Attributes:
      kv_lens: keys of each sequence, ``(max_seqs,)``.
      pages: their pages, ``(max_seqs * pages_per_sequence,)``.
      cu_q_lens: where their queries start and end, ``(max_seqs + 1,)``.
      schedule: who meets whom.
    """

    kv_lens: Ref
    pages: Ref
    cu_q_lens: Ref
    schedule: _Schedule


class _Scratch(NamedTuple):
    """What the kernel keeps, in VMEM but for scalars and semaphores.

    Attributes:
      slots: two blocks of pages, ``(2, parts, block_rows, d / parts)``: the rows of a block are
        key and value of each head of each token in turn, in ``parts`` as wide as a tile.
      semaphores: of the copies to each slot, ``(2,)``.
      next_slot: the slot of the next block, ``(1,)``, from one step of the grid to the next.
      q: the queries that share a head of keys, one head of them below the other, ``(num_kv_heads,
        rows, d)``.
      bias: 0 where a token sees a key, else -inf, ``(block_q, block_kv)``.
    """

    slots: Ref
    semaphores: Ref
    next_slot: Ref
    q: Ref
    bias: Ref


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the kernel needs besides arrays.

    Attributes:
      scale: factor of the scores.
      soft_cap: of the scores, or None.
      window: how many keys a query sees, or None.
      pages_per_sequence: entries of the table for each sequence.
      page_size: tokens of a page.
    """

    scale: float
    soft_cap: float | None
    window: int | None
    pages_per_sequence: int
    page_size: int


def _ragged_kernel(
    tables: _Tables,
    q: Ref,
    kv_pages: Ref,
    o: Ref,
    scratch: _Scratch,
    softmax: Softmax,
    *,
    settings: _Settings,
) -> None:
    """Step ``this`` of the grid: all pairs of a block of queries.

    Args:
      tables: scalars.
      q: queries, ``(block_q, num_q_heads, d)``.
      kv_pages: all pages, ``(num_pages, page_size * 2 * num_kv_heads, d)``, in HBM.
      o: the output, ``(block_q, num_q_heads, d)``.
      scratch: what the kernel keeps.
      softmax: of the queries.
      settings: of the attention.
    """
    schedule, block_q = tables.schedule, scratch.bias.shape[0]
    this = pl.program_id(0)
    pairs = schedule.pairs_before[pl.num_programs(0)]
    start = functools.partial(_start, tables, kv_pages, scratch, settings)

    @pl.when(this == 0)
    def _first() -> None:
        scratch.next_slot[0] = 0
        pl.when(pairs > 0)(lambda: start(0, schedule.first_block[0], 0, unroll=False))

    clear(softmax)
    scratch.q[...] = jnp.swapaxes(q[...], 0, 1).reshape(scratch.q.shape)

    def attend(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        pair, i, slot = state
        is_last = i + 1 == schedule.end_block[pair]
        next_pair = jnp.where(is_last, pair + 1, pair)
        next_i = jnp.where(is_last, schedule.first_block[pair + 1], i + 1)
        pl.when(next_pair < pairs)(lambda: start(next_pair, next_i, _SLOTS - 1 - slot))
        _add_block(tables, scratch, softmax, settings, this * block_q, pair, i, slot)
        return next_pair, next_i, _SLOTS - 1 - slot

    begin, end = schedule.pairs_before[this], schedule.pairs_before[this + 1]
    state = (begin, schedule.first_block[begin], scratch.next_slot[0])
    scratch.next_slot[0] = jax.lax.while_loop(lambda state: state[0] < end, attend, state)[2]

    out = divided(softmax).reshape(-1, block_q, q.shape[2])
    row = this * block_q + jax.lax.broadcasted_iota(jnp.int32, (1, *out.shape[1:]), 1)
    out = jnp.where(row < schedule.tokens[0], out, 0.0)  # the others may be NaN
    o[...] = jnp.swapaxes(out.astype(o.dtype), 0, 1)


def _start(
    tables: _Tables,
    kv_pages: Ref,
    scratch: _Scratch,
    settings: _Settings,
    pair: Any,
    i: Any,
    slot: Any,
    *,
    unroll: bool = True,
) -> None:
    """Begin to fetch the pages that block ``i`` of the sequence of a pair has."""
    _, parts, _, width = scratch.slots.shape
    block_pages = scratch.bias.shape[1] // settings.page_size
    first = tables.schedule.sequence[pair] * settings.pages_per_sequence + i * block_pages

    def fetch(at: Any) -> None:
        page = kv_pages.at[tables.pages[first + at]]
        for part in range(parts):
            source = page.at[:, pl.ds(part * width, width)] if parts > 1 else page
            target = scratch.slots.at[slot, part, _rows_of_page(scratch, settings, at)]
            pltpu.async_copy(source, target, scratch.semaphores.at[slot])

    owned = _owned_pages(tables, scratch, settings, pair, i)
    start_pages(owned, block_pages, fetch, unroll=unroll)


def _owned_pages(
    tables: _Tables, scratch: _Scratch, settings: _Settings, pair: Any, i: Any
) -> jax.Array:
    """How many pages block ``i`` of the sequence of a pair has."""
    block_pages = scratch.bias.shape[1] // settings.page_size
    pages = pl.cdiv(tables.kv_lens[tables.schedule.sequence[pair]], settings.page_size)
    return jnp.clip(pages - i * block_pages, 0, block_pages)


def _rows_of_page(scratch: _Scratch, settings: _Settings, at: Any) -> pl.Slice:
    """Where page ``at`` of a block lies in a slot."""
    rows = 2 * scratch.q.shape[0] * settings.page_size
    return pl.dslice(pl.multiple_of(at * rows, rows), rows)


def _add_block(
    tables: _Tables,
    scratch: _Scratch,
    softmax: Softmax,
    settings: _Settings,
    first_row: jax.Array,
    pair: jax.Array,
    i: jax.Array,
    slot: jax.Array,
) -> None:
    """Add block ``i`` of the keys of a pair, which is on its way to a slot.

    Args:
      tables: scalars.
      scratch: what the kernel keeps.
      softmax: of the queries.
      settings: of the attention.
      first_row: the first token of the block of queries.
      pair: which pair.
      i: which block of its keys.
      slot: where it goes.
    """
    block_q, block_kv = scratch.bias.shape
    sequence = tables.schedule.sequence[pair]
    keys = tables.kv_lens[sequence] - i * block_kv  # of this block and those after it
    visible = _visible(
        (block_q, block_kv),
        first_row=first_row,
        first_key=i * block_kv,
        rows=(tables.cu_q_lens[sequence], tables.cu_q_lens[sequence + 1]),
        kv_len=tables.kv_lens[sequence],
        window=settings.window,
    )
    scratch.bias[...] = jnp.where(visible, 0.0, -jnp.inf)
    wait_pages(
        _owned_pages(tables, scratch, settings, pair, i),
        block_kv // settings.page_size,
        scratch.slots.at[slot],
        scratch.slots.at[slot, :, _rows_of_page(scratch, settings, 0)],
        scratch.semaphores.at[slot],
    )
    _clear_tail(scratch, settings, slot, keys)
    for head in range(scratch.q.shape[0]):
        k, v = _head_of(scratch, slot, 2 * head), _head_of(scratch, slot, 2 * head + 1)
        _add_head(scratch, softmax, settings, head, k, v)


def _clear_tail(scratch: _Scratch, settings: _Settings, slot: jax.Array, keys: jax.Array) -> None:
    """Clear what is beyond the last key: zero weights do not stop a NaN."""
    slots, page_size = scratch.slots, settings.page_size
    rows_of_token = 2 * scratch.q.shape[0]
    block_pages = scratch.bias.shape[1] // page_size

    @pl.loop(jnp.minimum(keys // page_size, block_pages), block_pages)
    def _page(at: jax.Array) -> None:
        here = (slot, slice(None), _rows_of_page(scratch, settings, at))
        page = slots[here]
        row = at * (page_size * rows_of_token) + jax.lax.broadcasted_iota(jnp.int32, page.shape, 1)
        slots[here] = jnp.where(row < rows_of_token * keys, page, 0).astype(page.dtype)


def _head_of(scratch: _Scratch, slot: jax.Array, first: int) -> jax.Array:
    """The rows of a slot from ``first``, one a token: keys or values of a head."""
    rows = pl.dslice(first, scratch.bias.shape[1], 2 * scratch.q.shape[0])
    parts = range(scratch.slots.shape[1])
    return jnp.concatenate([scratch.slots.at[slot, part][rows] for part in parts], axis=1)


def _add_head(
    scratch: _Scratch, softmax: Softmax, settings: _Settings, head: int, k: jax.Array, v: jax.Array
) -> None:
    """Add keys and values ``(block_kv, d)`` for the queries that share a head of them."""
    bias = scratch.bias
    scores = settings.scale * product(scratch.q[head], k, (1, 1))
    if settings.soft_cap is not None:
        scores = settings.soft_cap * jnp.tanh(scores / settings.soft_cap)
    scores = (scores.reshape(-1, *bias.shape) + bias[...]).reshape(scores.shape)
    m = jnp.maximum(softmax.m[head], jnp.max(scores, axis=1, keepdims=True))
    shift = jnp.where(m == -jnp.inf, 0.0, m)  # a row that has seen nothing yet
    weights = jnp.exp(scores - lanes(shift, bias.shape[1]))
    rescale = jnp.exp(softmax.m[head] - shift)
    softmax.m[head] = m
    softmax.sums[head] = rescale * softmax.sums[head] + jnp.sum(weights, axis=1, keepdims=True)
    softmax.acc[head] = lanes(rescale, v.shape[1]) * softmax.acc[head] + product(
        weights.astype(v.dtype), v, (1, 0)
    )


def _visible(
    shape: tuple[int, int],
    *,
    first_row: Any,
    first_key: Any,
    rows: tuple[Any, Any],
    kv_len: Any,
    window: int | None,
) -> Any:
    """Which tokens of a block see which keys of a block; ``rows`` are those of the sequence."""
    row = first_row + jax.lax.broadcasted_iota(jnp.int32, (shape[0], 1), 0)
    mine = jnp.logical_and(row >= rows[0], row < rows[1])
    position = kv_len - rows[1] + row - first_key
    key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    visible = key <= jnp.where(mine, position, -1)
    if window is not None:
        visible = jnp.logical_and(visible, key > position - window)
    return visible


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
    block_q: int = 32,
    pages_per_block: int | None = None,
) -> jax.Array:
    """Causal attention of several sequences whose queries are packed and whose keys are paged.

    Args:
      q: queries of all sequences, ``(tokens, num_q_heads, d)``, float32 or bfloat16.
      kv_pages: keys and values in turn, ``(num_pages, page_size, 2 * num_kv_heads, d)``. A TPU
        wants the rows of a page, ``page_size * 2 * num_kv_heads``, to be a multiple of 8 for
        float32 and 16 for bfloat16. If ``2 * num_kv_heads`` is neither 2, 4 nor a multiple of 8,
        XLA stores it otherwise and copies the whole cache for this kernel.
      kv_lens: keys of each sequence, those of its queries included, int32 ``(max_seqs,)``; at most
        ``pages_per_sequence * page_size``. Only the first ``num_seqs`` count.
      page_indices: pages of each sequence, int32 ``(max_seqs, pages_per_sequence)``. Entries that
        hold keys must be from 0 to ``num_pages - 1``; the others are never read.
      cu_q_lens: where the queries of each sequence start and end, int32 ``(max_seqs + 1,)``,
        ascending from 0 to at most ``tokens``. Only the first ``num_seqs + 1`` count.
      num_seqs: int32 ``(1,)``.
      scale: factor of the scores; ``d ** -0.5`` by default.
      soft_cap: scores become ``soft_cap * tanh(scores / soft_cap)``.
      sliding_window: a query sees so many keys at most, itself the last of them.
      block_q: tokens in a block of queries, rounded up to a multiple of 16. Small ones suit batches
        that mostly decode.
      pages_per_block: pages in a block of keys; by default as many as make 128 keys.

    Returns:
      ``(tokens, num_q_heads, d)``, of the dtype of ``q``; zero for a query that sees no key, which
      are those of a sequence before its keys begin, and for tokens of no sequence.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a size is not positive, or heads are
        not divisible.
    """
    _check(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    tokens, num_q_heads, d = q.shape
    _, page_size, rows_of_token, _ = kv_pages.shape
    kv_heads, pages_per_sequence = rows_of_token // 2, page_indices.shape[1]
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be positive or None, but it is {soft_cap!r}")
    if sliding_window is not None:
        _require.positive(sliding_window=sliding_window)
    if pages_per_block is None:
        pages_per_block = pl.cdiv(128, page_size)
    _require.positive(block_q=block_q, pages_per_block=pages_per_block)

    block_q = fit(pl.cdiv(block_q, ROWS) * ROWS, tokens, ROWS)
    block_pages = min(pages_per_block, pages_per_sequence)
    kv_lens = jnp.clip(kv_lens, 0, pages_per_sequence * page_size)
    schedule = _schedule(
        kv_lens,
        cu_q_lens,
        num_seqs,
        pl.cdiv(tokens, block_q),
        block_q,
        block_pages * page_size,
        sliding_window,
    )
    queries = pl.BlockSpec((block_q, num_q_heads, d), lambda i, *_: (i, 0, 0))
    rows = num_q_heads // kv_heads * block_q
    block_rows = block_pages * page_size * rows_of_token
    # Mosaic loads every n-th row only where rows are not longer than a tile (JAX 0.12.0.1).
    parts = d // LANES if d % LANES == 0 else 1

    return pl.pallas_call(
        functools.partial(
            _ragged_kernel,
            settings=_Settings(
                scale=d**-0.5 if scale is None else scale,
                soft_cap=soft_cap,
                window=sliding_window,
                pages_per_sequence=pages_per_sequence,
                page_size=page_size,
            ),
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(tokens, block_q),),
            in_specs=[queries, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=queries,
            scratch_shapes=[
                _Scratch(
                    slots=pltpu.VMEM((_SLOTS, parts, block_rows, d // parts), kv_pages.dtype),
                    semaphores=pltpu.SemaphoreType.DMA((_SLOTS,)),
                    next_slot=pltpu.SMEM((1,), jnp.int32),
                    q=pltpu.VMEM((kv_heads, rows, d), q.dtype),
                    bias=pltpu.VMEM((block_q, block_pages * page_size), jnp.float32),
                ),
                softmax_memory(kv_heads, rows, d),
            ],
        ),
    )(
        _Tables(kv_lens, page_indices.reshape(-1), cu_q_lens, schedule),
        q,
        kv_pages.reshape(-1, page_size * rows_of_token, d),
    )


def _schedule(
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    blocks: int,
    block_q: int,
    block_kv: int,
    window: int | None,
) -> _Schedule:
    """The pairs of a block of queries and a sequence, as arrays."""
    max_seqs = kv_lens.shape[0]
    starts, ends = cu_q_lens[:-1], cu_q_lens[1:]
    has_queries = jnp.logical_and(jnp.arange(max_seqs) < num_seqs[0], ends > starts)
    first, last = starts // block_q, (ends - 1) // block_q
    count = jnp.where(has_queries, last - first + 1, 0)
    up_to = jnp.cumsum(count)

    pair = jnp.arange(blocks + max_seqs)
    exists = pair < up_to[-1]
    sequence = jnp.minimum(jnp.searchsorted(up_to, pair, side="right"), max_seqs - 1)
    block = first[sequence] + pair - (up_to - count)[sequence]
    # Positions of the first and after the last query of the pair.
    before = kv_lens[sequence] - ends[sequence]
    low = before + jnp.maximum(starts[sequence], block * block_q)
    high = before + jnp.minimum(ends[sequence], (block + 1) * block_q)
    first_key = jnp.zeros_like(low) if window is None else jnp.maximum(low + 1 - window, 0)
    first_block = first_key // block_kv
    pairs_before = jnp.searchsorted(
        jnp.where(exists, block, blocks), jnp.arange(blocks + 1), side="left"
    )
    schedule = _Schedule(
        sequence=sequence,
        first_block=first_block,
        end_block=jnp.maximum(pl.cdiv(high, block_kv), first_block + 1),
        pairs_before=pairs_before,
        tokens=cu_q_lens[num_seqs],
    )
    return jax.tree.map(lambda each: each.astype(jnp.int32), schedule)


def _check(
    q: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any
) -> None:
    """Raise ValueError unless the operands fit together."""
    _, num_q_heads, d = _require.axes("q", q, "tokens num_q_heads d")
    _, _, rows, kv_d = _require.axes("kv_pages", kv_pages, "num_pages page_size 2*num_kv_heads d")
    _require.same_size("d", ("q", d), ("kv_pages", kv_d))
    if rows % 2:
        raise ValueError(
            f"kv_pages must have a key and a value for each head, but its 2*num_kv_heads is {rows}"
        )
    if num_q_heads % (rows // 2):
        raise ValueError(
            f"q must have a multiple of the num_kv_heads of kv_pages, {rows // 2}, of heads, but "
            f"it has {num_q_heads}"
        )
    _require.floating("q", q)
    _require.same_dtype(q=q, kv_pages=kv_pages)
    check_lists(kv_lens, page_indices, cu_q_lens, num_seqs)


def check_lists(kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any) -> None:
    """Raise ValueError unless these are int32 and for the same number of sequences."""
    max_seqs, pages = _require.axes("page_indices", page_indices, "max_seqs pages_per_sequence")
    for name, operand, shape in (
        ("kv_lens", kv_lens, (max_seqs,)),
        ("page_indices", page_indices, (max_seqs, pages)),
        ("cu_q_lens", cu_q_lens, (max_seqs + 1,)),
        ("num_seqs", num_seqs, (1,)),
    ):
        if operand.dtype != jnp.int32 or operand.shape != shape:
            raise ValueError(
                f"{name} must be int32 of shape {shape}, but it is {operand.dtype} of shape "
                f"{operand.shape}"
            )


def reference(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
) -> jax.Array:
    """The same by a loop over the sequences, each with all queries and the pages of its own."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    tokens, _, d = q.shape
    kv_heads = kv_pages.shape[2] // 2
    grouped = q.reshape(tokens, kv_heads, -1, d).astype(wide)
    row, key = jnp.arange(tokens), jnp.arange(page_indices.shape[1] * kv_pages.shape[1])
    high = precision_for(wide)
    out = jnp.zeros_like(grouped)
    for s in range(page_indices.shape[0]):
        kv = kv_pages[page_indices[s]].reshape(-1, kv_heads, 2, d).astype(wide)
        kv = jnp.where((key < kv_lens[s])[:, None, None, None], kv, 0)
        position = (kv_lens[s] - cu_q_lens[s + 1] + row)[:, None]
        mine = (row >= cu_q_lens[s]) & (row < cu_q_lens[s + 1]) & (s < num_seqs[0])
        visible = mine[:, None] & (key <= position)
        if sliding_window is not None:
            visible &= key > position - sliding_window
        scores = jnp.einsum("rhgd,thd->rhgt", grouped, kv[:, :, 0], precision=high)
        scores = scores * (d**-0.5 if scale is None else scale)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
        top = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights / jnp.where(total == 0.0, 1.0, total)
        out += jnp.einsum("rhgt,thd->rhgd", weights, kv[:, :, 1], precision=high)
    return out.reshape(q.shape).astype(q.dtype)
