"""Paged attention for decoding: one query a sequence, keys and values in pages anywhere in memory.

Shapes: ``q (batch, num_q_heads, d)``, ``k_pages`` and ``v_pages (num_kv_heads, num_pages,
page_size, d)``, ``lengths (batch,)``, ``page_indices (batch, pages_per_sequence)``, output as
``q``. Dtypes: float32 or bfloat16, the same for all; or int8 pages with a float32 scale a key and a
value, ``k_scales`` and ``v_scales (num_pages, num_kv_heads, page_size)``.

With ``k`` and ``v`` the first ``lengths[b]`` rows of the pages that ``page_indices[b]`` names, one
after the other, and ``h = i // (num_q_heads // num_kv_heads)`` (grouped queries):

    o[b, i] = softmax(scale q[b, i] k[h]^T) v[h]

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", 2023 (arXiv:2309.06180); the online softmax is that of ``flash_attention``; grouped
queries are from Ainslie et al., 2023 (arXiv:2305.13245).

No BlockSpec can gather pages, so the kernel fetches them itself. A compute block is several pages
of all heads of a step. While one block is computed, the DMAs of the next one fill the other of two
slots, and the next one may belong to the next sequence: what comes after the last block of a
sequence is read from a list, so that the copies never pause. Only pages that a sequence has are
fetched, so what the page table holds beyond them is never looked at.

All heads of a page come by one strided DMA. Scales have the page in front, because a DMA cannot
pick one row out of a tile. They multiply scores and weights, of which there is one a query and key,
and not ``d``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, precision_for
from reference_kernels.attention._pages import lanes, start_pages, wait_pages

_SLOTS = 2

#: Queries of a head are padded to whole tiles of this many rows.
_ROWS = 8

#: Bytes of a slot of keys, or of values, that a block is chosen for.
_SLOT_BYTES = 2**20


def _paged_attention_kernel(
    lengths_ref: Any,
    pages_ref: Any,
    following_ref: Any,
    first_slot_ref: Any,
    q_ref: Any,
    k_sources: Any,
    v_sources: Any,
    o_ref: Any,
    k_slots: Any,
    v_slots: Any,
    semaphores: Any,
    m_ref: Any,
    l_ref: Any,
    acc_ref: Any,
    *,
    scale: float,
    soft_cap: float | None,
    pages_per_sequence: int,
) -> None:
    heads, block_pages, page_size, d = k_slots[0].shape[1:]
    block = block_pages * page_size
    first_head = pl.program_id(0) * heads
    b, batch = pl.program_id(1), pl.num_programs(1)
    length = lengths_ref[b]
    blocks = pl.cdiv(length, block)

    def copies(slot: Any, at: Any, page: Any) -> list[Any]:
        """The DMAs of a page: keys and values, and the scales of both if there are any."""
        pairs: list[tuple[Any, Any]] = []
        for (pages, *scales), (slots, *scales_slots) in zip(
            (k_sources, v_sources), (k_slots, v_slots), strict=True
        ):
            pairs.append((pages.at[pl.dslice(first_head, heads), page], slots.at[slot, :, at]))
            for each, scales_slot in zip(scales, scales_slots, strict=True):
                pairs.append((each.at[page], scales_slot.at[slot, at]))
        return [pltpu.make_async_copy(*pair, semaphores.at[slot]) for pair in pairs]

    def start(sequence: Any, i: Any, slot: Any, *, unroll: bool = True) -> None:
        """Begin to fetch the pages that block ``i`` of a sequence has."""
        first = i * block_pages
        owned = pl.cdiv(lengths_ref[sequence], page_size) - first

        def fetch(at: Any) -> None:
            for copy in copies(slot, at, pages_ref[sequence * pages_per_sequence + first + at]):
                copy.start()

        start_pages(owned, block_pages, fetch, unroll=unroll)

    def wait(slot: Any, owned: Any) -> None:
        for pages, *scales in (k_slots, v_slots):
            wait_pages(
                owned, block_pages, pages.at[slot], pages.at[slot, :, 0], semaphores.at[slot]
            )
            for each in scales:
                wait_pages(owned, block_pages, each.at[slot], each.at[slot, 0], semaphores.at[slot])

    def add_head(head: int, slot: Any, keys: Any) -> None:
        q = q_ref[head]
        k, v = (
            each[0][slot, head].reshape(block, d).astype(q.dtype) for each in (k_slots, v_slots)
        )
        scores = scale * jax.lax.dot_general(
            q,
            k,
            (((1,), (1,)), ((), ())),
            precision=precision_for(q.dtype),
            preferred_element_type=jnp.float32,
        )
        key = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        for scales in k_slots[1:]:
            scores = scores * _row_of_scales(scales.at[slot], first_head + head, keys)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        scores = jnp.where(key < keys, scores, -jnp.inf)
        m = jnp.maximum(m_ref[head], jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - lanes(m, block))  # a block has a key, so m is finite
        rescale = jnp.exp(m_ref[head] - m)
        m_ref[head] = m
        l_ref[head] = rescale * l_ref[head] + jnp.sum(weights, axis=1, keepdims=True)
        for scales in v_slots[1:]:
            weights = weights * _row_of_scales(scales.at[slot], first_head + head, keys)
        acc_ref[head] = lanes(rescale, d) * acc_ref[head] + jnp.dot(
            weights.astype(v.dtype),
            v,
            precision=precision_for(v.dtype),
            preferred_element_type=jnp.float32,
        )

    @pl.when(b == 0)
    def _first() -> None:
        sequence = jnp.where(length > 0, 0, following_ref[0])
        pl.when(sequence < batch)(lambda: start(sequence, 0, 0, unroll=False))

    m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
    l_ref[...] = jnp.zeros_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.loop(0, blocks)
    def _block(i: Any) -> None:
        slot = jax.lax.rem(first_slot_ref[b] + i, _SLOTS)
        is_last = i + 1 == blocks
        sequence = jnp.where(is_last, following_ref[b], b)
        pl.when(sequence < batch)(
            lambda: start(sequence, jnp.where(is_last, 0, i + 1), _SLOTS - 1 - slot)
        )
        keys = length - i * block  # of this block that count
        wait(slot, pl.cdiv(keys, page_size))

        @pl.loop(keys // page_size, block_pages)  # zero weights do not stop a NaN
        def _clear_tail(at: Any) -> None:
            page = v_slots[0][slot, :, at]
            row = at * page_size + jax.lax.broadcasted_iota(jnp.int32, page.shape, 1)
            v_slots[0][slot, :, at] = jnp.where(row < keys, page, 0).astype(page.dtype)

        for head in range(heads):
            add_head(head, slot, keys)

    total = lanes(l_ref[...], d)
    o_ref[...] = (acc_ref[...] / jnp.where(total == 0.0, 1.0, total)).astype(o_ref.dtype)


def _row_of_scales(ref: Any, head: Any, keys: Any) -> Any:
    """Scales (pages, num_kv_heads, page_size) of a head as (1, block), zero beyond the end."""
    pages = [ref[page, pl.dslice(head, 1)] for page in range(ref.shape[0])]
    row = jnp.concatenate(pages, axis=1)
    key = jax.lax.broadcasted_iota(jnp.int32, row.shape, 1)
    return jnp.where(key < keys, row, 0.0)


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    k_scales: jax.Array | None = None,
    v_scales: jax.Array | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    pages_per_block: int | None = None,
    heads_per_block: int | None = None,
) -> jax.Array:
    """Attention of one query a sequence over keys and values in pages.

    Args:
      q: queries, ``(batch, num_q_heads, d)``, float32 or bfloat16.
      k_pages: keys, ``(num_kv_heads, num_pages, page_size, d)``, of the dtype of ``q``, or int8
        with ``k_scales``. A TPU copies whole tiles best: a ``page_size`` that is a multiple of 8
        for float32, 16 for bfloat16 and 32 for int8.
      v_pages: values, like ``k_pages``.
      lengths: keys of each sequence, int32 ``(batch,)``, 0 to ``pages_per_sequence * page_size``;
        what is beyond that range counts as its end.
      page_indices: the pages of each sequence, int32 ``(batch, pages_per_sequence)``. Entries
        that hold keys must be from 0 to ``num_pages - 1``; the others are never read.
      k_scales: what int8 keys are multiplied by, float32 ``(num_pages, num_kv_heads, page_size)``.
      v_scales: the same for values; both or none.
      scale: factor of the scores; ``d ** -0.5`` by default.
      soft_cap: scores become ``soft_cap * tanh(scores / soft_cap)``.
      pages_per_block: pages of a compute block. Two blocks of keys and two of values must fit in
        VMEM; by default as many pages as make 1 MB of a block of keys.
      heads_per_block: heads of keys in a grid step, all by default. The two cores of a v4 or v5p
        share the blocks of heads, so half of the heads is best there.

    Returns:
      ``(batch, num_q_heads, d)``, of the dtype of ``q``; zero for a sequence of length 0.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a size is not positive, or heads are
        not divisible.
    """
    operands = q, k_pages, v_pages, lengths, page_indices
    batch, num_q_heads, d = _check(*operands, k_scales, v_scales)
    num_kv_heads, _, page_size, _ = k_pages.shape
    pages_per_sequence = page_indices.shape[1]
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be positive or None, but it is {soft_cap!r}")
    heads = num_kv_heads if heads_per_block is None else heads_per_block
    if pages_per_block is None:
        page_bytes = heads * page_size * d * k_pages.dtype.itemsize
        pages_per_block = max(1, _SLOT_BYTES // page_bytes)
    _require.positive(heads_per_block=heads, pages_per_block=pages_per_block)
    if num_kv_heads % heads:
        raise ValueError(
            f"heads_per_block must divide num_kv_heads, {num_kv_heads}, but it is {heads}"
        )
    block_pages = min(pages_per_block, pages_per_sequence)

    lengths = jnp.clip(lengths, 0, pages_per_sequence * page_size)
    group = num_q_heads // num_kv_heads
    rows = pl.cdiv(group, _ROWS) * _ROWS
    grouped = q.reshape(batch, num_kv_heads, group, d)
    grouped = jnp.pad(grouped, ((0, 0), (0, 0), (0, rows - group), (0, 0)))

    k_sources = (k_pages,) if k_scales is None else (k_pages, k_scales)
    v_sources = (v_pages,) if v_scales is None else (v_pages, v_scales)
    slots = [pltpu.VMEM((_SLOTS, heads, block_pages, page_size, d), k_pages.dtype)]
    if k_scales is not None:
        slots.append(pltpu.VMEM((_SLOTS, block_pages, num_kv_heads, page_size), jnp.float32))
    queries = pl.BlockSpec((None, heads, rows, d), lambda h, b, *_: (b, h, 0, 0))
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    out = pl.pallas_call(
        functools.partial(
            _paged_attention_kernel,
            scale=d**-0.5 if scale is None else scale,
            soft_cap=soft_cap,
            pages_per_sequence=pages_per_sequence,
        ),
        out_shape=jax.ShapeDtypeStruct(grouped.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(num_kv_heads // heads, batch),
            in_specs=[queries, (anywhere,) * len(k_sources), (anywhere,) * len(v_sources)],
            out_specs=queries,
            scratch_shapes=[
                tuple(slots),
                tuple(slots),
                pltpu.SemaphoreType.DMA((_SLOTS,)),
                pltpu.VMEM((heads, rows, LANES), jnp.float32),
                pltpu.VMEM((heads, rows, LANES), jnp.float32),
                pltpu.VMEM((heads, rows, d), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(
        lengths,
        page_indices.reshape(-1),
        *_order(lengths, block_pages * page_size),
        grouped,
        k_sources,
        v_sources,
    )
    return out[:, :, :group].reshape(q.shape)


def _order(lengths: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The next sequence with keys after each one, or batch; and the slot of its own first block."""
    batch = lengths.shape[0]
    here = jnp.where(lengths > 0, jnp.arange(batch, dtype=jnp.int32), batch)
    from_here = jax.lax.cummin(here, reverse=True)
    following = jnp.append(from_here[1:], batch).astype(jnp.int32)
    blocks = pl.cdiv(lengths, block)
    return following, ((jnp.cumsum(blocks) - blocks) % _SLOTS).astype(jnp.int32)


def _check(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    lengths: Any,
    page_indices: Any,
    k_scales: Any,
    v_scales: Any,
) -> tuple[int, int, int]:
    """The sizes of ``q``, or ValueError."""
    batch, num_q_heads, d = _require.axes("q", q, "batch num_q_heads d")
    names = "num_kv_heads num_pages page_size d"
    k_shape = _require.axes("k_pages", k_pages, names)
    v_shape = _require.axes("v_pages", v_pages, names)
    for axis, k_size, v_size in zip(names.split(), k_shape, v_shape, strict=True):
        _require.same_size(axis, ("k_pages", k_size), ("v_pages", v_size))
    _require.same_size("d", ("q", d), ("k_pages", k_shape[3]))
    if num_q_heads % k_shape[0]:
        raise ValueError(
            f"q must have a multiple of the num_kv_heads of k_pages, {k_shape[0]}, of heads, but "
            f"it has {num_q_heads}"
        )
    _require.floating("q", q)
    if (k_scales is None) != (v_scales is None):
        raise ValueError("k_scales and v_scales must be given both or not at all")
    if k_scales is None:
        _require.same_dtype(q=q, k_pages=k_pages, v_pages=v_pages)
    else:
        scales_shape = (k_shape[1], k_shape[0], k_shape[2])
        for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
            _must_be(name, pages, jnp.int8, k_shape)
        for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
            _must_be(name, scales, jnp.float32, scales_shape)
    _require.axes("page_indices", page_indices, "batch pages_per_sequence")
    _must_be("lengths", lengths, jnp.int32, (batch,))
    _must_be("page_indices", page_indices, jnp.int32, (batch, page_indices.shape[1]))
    return batch, num_q_heads, d


def _must_be(name: str, operand: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    if operand.dtype != dtype or operand.shape != shape:
        raise ValueError(
            f"{name} must be {jnp.dtype(dtype).name} of shape {shape}, but it is "
            f"{operand.dtype} of shape {operand.shape}"
        )


def reference(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    k_scales: jax.Array | None = None,
    v_scales: jax.Array | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> jax.Array:
    """The same by gathering all pages of every sequence."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    batch, _, d = q.shape
    num_kv_heads = k_pages.shape[0]
    visible = jnp.arange(page_indices.shape[1] * k_pages.shape[2]) < lengths[:, None]

    def gathered(pages: Any, scales: Any) -> Any:
        pages = pages.astype(wide)
        if scales is not None:
            pages = pages * jnp.swapaxes(scales, 0, 1).astype(wide)[..., None]
        keys = jnp.moveaxis(pages[:, page_indices], 0, 1).reshape(batch, num_kv_heads, -1, d)
        return jnp.where(visible[:, None, :, None], keys, 0)

    k, v = gathered(k_pages, k_scales), gathered(v_pages, v_scales)
    grouped = q.reshape(batch, num_kv_heads, -1, d).astype(wide)
    high = precision_for(wide)
    scores = jnp.einsum("bhgd,bhtd->bhgt", grouped, k, precision=high)
    scores = scores * (d**-0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    out = jnp.einsum("bhgt,bhtd->bhgd", weights, v, precision=high)
    return out.reshape(q.shape).astype(q.dtype)
