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

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import precision_for, product
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

#: Queries of a head are padded to whole tiles of this many rows.
_ROWS = 8

#: Bytes of a slot of keys, or of values, that a block is chosen for.
_SLOT_BYTES = 2**20


class _Tables(NamedTuple):
    """Scalars that are there before the kernel starts.

    Attributes:
      lengths: keys of each sequence, ``(batch,)``.
      pages: the pages of the sequences, ``(batch * pages_per_sequence,)``.
      following: the next sequence with keys after each one, or ``batch``.
      first_slot: the slot of each sequence's first block.
    """

    lengths: Ref
    pages: Ref
    following: Ref
    first_slot: Ref


class _Cache(NamedTuple):
    """Keys and values by page, and the scales of each if they are int8.

    Attributes:
      k: ``(num_kv_heads, num_pages, page_size, d)``; in VMEM, two blocks of pages of some heads,
        ``(2, heads, block_pages, page_size, d)``.
      k_scales: ``(num_pages, num_kv_heads, page_size)``; in VMEM ``(2, block_pages, num_kv_heads,
        page_size)``; or None.
      v: like ``k``.
      v_scales: like ``k_scales``.
    """

    k: Ref
    k_scales: Ref | None
    v: Ref
    v_scales: Ref | None


class _Memory(NamedTuple):
    """Where pages come from and go to.

    Attributes:
      cache: in HBM.
      slots: in VMEM.
      semaphores: of the copies to each slot, ``(2,)``.
    """

    cache: _Cache
    slots: _Cache
    semaphores: Ref


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the kernel needs besides arrays.

    Attributes:
      scale: factor of the scores.
      soft_cap: of the scores, or None.
      pages_per_sequence: entries of the table for each sequence.
    """

    scale: float
    soft_cap: float | None
    pages_per_sequence: int


def _paged_attention_kernel(
    tables: _Tables,
    q: Ref,
    cache: _Cache,
    o: Ref,
    slots: _Cache,
    semaphores: Ref,
    softmax: Softmax,
    *,
    settings: _Settings,
) -> None:
    """Step ``(h, b)`` of the grid: the queries of sequence ``b`` for block ``h`` of the heads.

    Args:
      tables: scalars.
      q: queries, ``(heads, rows, d)``, padded to ``rows``.
      cache: all pages, in HBM.
      o: the output, ``(heads, rows, d)``.
      slots: room for two blocks of pages.
      semaphores: of the copies.
      softmax: of the queries.
      settings: of the attention.
    """
    heads, block_pages, page_size, _ = slots.k.shape[1:]
    block = block_pages * page_size
    first_head = pl.program_id(0) * heads
    b, batch = pl.program_id(1), pl.num_programs(1)
    length = tables.lengths[b]
    blocks = pl.cdiv(length, block)
    start = functools.partial(
        _start,
        tables,
        _Memory(cache, slots, semaphores),
        first_head,
        settings.pages_per_sequence,
    )

    @pl.when(b == 0)
    def _first() -> None:
        sequence = jnp.where(length > 0, 0, tables.following[0])
        pl.when(sequence < batch)(lambda: start(sequence, 0, 0, unroll=False))

    clear(softmax)

    @pl.loop(0, blocks)
    def _block(i: jax.Array) -> None:
        slot = jax.lax.rem(tables.first_slot[b] + i, _SLOTS)
        is_last = i + 1 == blocks
        sequence = jnp.where(is_last, tables.following[b], b)
        pl.when(sequence < batch)(
            lambda: start(sequence, jnp.where(is_last, 0, i + 1), _SLOTS - 1 - slot)
        )
        keys = length - i * block  # of this block that count
        _wait(slots, semaphores, slot, pl.cdiv(keys, page_size))
        _clear_tail(slots.v, slot, keys)
        for head in range(heads):
            _add_head(q, slots, softmax, settings, head, slot, first_head, keys)

    o[...] = divided(softmax).astype(o.dtype)


def _start(
    tables: _Tables,
    memory: _Memory,
    first_head: jax.Array,
    pages_per_sequence: int,
    sequence: Any,
    i: Any,
    slot: Any,
    *,
    unroll: bool = True,
) -> None:
    """Begin to fetch the pages that block ``i`` of a sequence has."""
    block_pages, page_size = memory.slots.k.shape[2:4]
    first = i * block_pages
    owned = pl.cdiv(tables.lengths[sequence], page_size) - first

    def fetch(at: Any) -> None:
        page = tables.pages[sequence * pages_per_sequence + first + at]
        for copy in _copies(memory, first_head, page, slot, at):
            copy.start()

    start_pages(owned, block_pages, fetch, unroll=unroll)


def _copies(memory: _Memory, first_head: jax.Array, page: Any, slot: Any, at: Any) -> list[Any]:
    """The DMAs of a page to place ``at`` of a slot: keys and values, and their scales if any."""
    cache, slots, semaphores = memory
    heads = pl.dslice(first_head, slots.k.shape[1])
    pairs: list[tuple[Ref, Ref]] = []
    for pages, pages_slots, scales, scales_slots in (
        (cache.k, slots.k, cache.k_scales, slots.k_scales),
        (cache.v, slots.v, cache.v_scales, slots.v_scales),
    ):
        pairs.append((pages.at[heads, page], pages_slots.at[slot, :, at]))
        if scales is not None and scales_slots is not None:
            pairs.append((scales.at[page], scales_slots.at[slot, at]))
    return [pltpu.make_async_copy(*pair, semaphores.at[slot]) for pair in pairs]


def _wait(slots: _Cache, semaphores: Ref, slot: jax.Array, owned: jax.Array) -> None:
    """Wait until the ``owned`` pages of a block have arrived in its slot."""
    block_pages = slots.k.shape[2]
    for pages, scales in ((slots.k, slots.k_scales), (slots.v, slots.v_scales)):
        page = pages.at[slot, :, 0]
        wait_pages(owned, block_pages, pages.at[slot], page, semaphores.at[slot])
        if scales is not None:
            page = scales.at[slot, 0]
            wait_pages(owned, block_pages, scales.at[slot], page, semaphores.at[slot])


def _clear_tail(v: Ref, slot: jax.Array, keys: jax.Array) -> None:
    """Clear the values beyond the last key: zero weights do not stop a NaN."""
    block_pages, page_size = v.shape[2:4]

    @pl.loop(keys // page_size, block_pages)
    def _page(at: jax.Array) -> None:
        page = v[slot, :, at]
        row = at * page_size + jax.lax.broadcasted_iota(jnp.int32, page.shape, 1)
        v[slot, :, at] = jnp.where(row < keys, page, 0).astype(page.dtype)


def _add_head(
    q_ref: Ref,
    slots: _Cache,
    softmax: Softmax,
    settings: _Settings,
    head: int,
    slot: jax.Array,
    first_head: jax.Array,
    keys: jax.Array,
) -> None:
    """Add the block in a slot, of which the first ``keys`` count, for the queries of a head."""
    _, block_pages, page_size, d = slots.k.shape[1:]
    block = block_pages * page_size
    q = q_ref[head]
    k, v = (each[slot, head].reshape(block, d).astype(q.dtype) for each in (slots.k, slots.v))
    scores = settings.scale * product(q, k, (1, 1))
    key = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    if slots.k_scales is not None:
        scores = scores * _row_of_scales(slots.k_scales.at[slot], first_head + head, keys)
    if settings.soft_cap is not None:
        scores = settings.soft_cap * jnp.tanh(scores / settings.soft_cap)
    scores = jnp.where(key < keys, scores, -jnp.inf)
    m = jnp.maximum(softmax.m[head], jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp(scores - lanes(m, block))  # a block has a key, so m is finite
    rescale = jnp.exp(softmax.m[head] - m)
    softmax.m[head] = m
    softmax.sums[head] = rescale * softmax.sums[head] + jnp.sum(weights, axis=1, keepdims=True)
    if slots.v_scales is not None:
        weights = weights * _row_of_scales(slots.v_scales.at[slot], first_head + head, keys)
    softmax.acc[head] = lanes(rescale, d) * softmax.acc[head] + product(
        weights.astype(v.dtype), v, (1, 0)
    )


def _row_of_scales(ref: Ref, head: jax.Array, keys: jax.Array) -> jax.Array:
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

    slots = pltpu.VMEM((_SLOTS, heads, block_pages, page_size, d), k_pages.dtype)
    scales_slots = None
    if k_scales is not None:
        scales_slots = pltpu.VMEM((_SLOTS, block_pages, num_kv_heads, page_size), jnp.float32)
    queries = pl.BlockSpec((None, heads, rows, d), lambda h, b, *_: (b, h, 0, 0))
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    anywhere_too = None if k_scales is None else anywhere

    out = pl.pallas_call(
        functools.partial(
            _paged_attention_kernel,
            settings=_Settings(d**-0.5 if scale is None else scale, soft_cap, pages_per_sequence),
        ),
        out_shape=jax.ShapeDtypeStruct(grouped.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(num_kv_heads // heads, batch),
            in_specs=[queries, _Cache(anywhere, anywhere_too, anywhere, anywhere_too)],
            out_specs=queries,
            scratch_shapes=[
                _Cache(slots, scales_slots, slots, scales_slots),
                pltpu.SemaphoreType.DMA((_SLOTS,)),
                softmax_memory(heads, rows, d),
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(
        _Tables(lengths, page_indices.reshape(-1), *_order(lengths, block_pages * page_size)),
        grouped,
        _Cache(k_pages, k_scales, v_pages, v_scales),
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
