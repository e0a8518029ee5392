"""Gradients of flash attention on a Hopper GPU, in one kernel or two.

With ``p = exp2(s - log_sum)`` computed again from the saved sums of the forward kernel, ``dp = do
v^T`` and ``delta_i = sum_j o_ij do_ij``: ``ds = p (dp - delta)``, ``dq = scale ds k``, ``dk = scale
ds^T q`` and ``dv = p^T do`` (Dao, "FlashAttention-2", 2023, arXiv:2307.08691, algorithm 2).

A tile of keys needs all queries, a tile of queries all keys. What a tile sums up stays in the
registers of its block. The kernel of the keys computes the transposed scores, keys by queries. Then
``p^T`` and ``ds^T`` are accumulators with the keys as rows, and after rounding they are the left
side of the next product as they are, in registers. It goes over all heads of queries that read its
keys, so ``dk`` and ``dv`` of a group are summed in float32 too. ``dq`` comes from one of two
kernels:

- The kernel of the keys, for a ``d`` of 64 or 128: a block adds its part of ``dq`` to global
  memory, in float32, by a TMA copy that adds (PTX ISA, "cp.reduce.async.bulk"). The two computing
  warpgroups exchange ``ds`` through shared memory. Then each multiplies all of it with half the
  columns of the keys, or, with 64 columns, that of every second block. They do so one block later,
  when the other one has long written its ``ds``. Blocks add in any order, so the last bits of
  ``dq`` differ from run to run.
- A kernel of the queries, which computes scores and ``dp`` once more: seven products instead
  of five. Nothing depends on the order of blocks.

As in the forward kernel, two warpgroups compute and one copies: blocks of two arrays in turn into a
ring of slots. Each slot is free as soon as its block has been multiplied.

A ``d`` of 256 takes twice the room. In shared memory there are three slots instead of four. In
registers there is room for half the columns of ``dk`` and ``dv``: another block of the grid has the
other half, and computes the scores once more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _rows, _tiles
from reference_kernels.mosaic_gpu._hopper_blocks import (
    CONSUMERS,
    ROWS,
    TILE,
    Settings,
    in_shared,
    over_columns,
    over_rows,
    roles,
)

_BLOCK = ROWS  # queries or keys of a block that goes by
_WIDEST = 128  # columns of dk and dv that are summed up at a time
_WIDTH = 64  # columns of dq that a warpgroup multiplies
_ACC = plgpu.ACC((ROWS, _BLOCK), jnp.float32)


class _Arrays(NamedTuple):
    """Arrays in global memory; lengths are whole tiles.

    Attributes:
      q: queries, ``(h, q_len, d)``.
      do: the cotangent of the output, likewise.
      k: keys, ``(g, kv_len, d)``.
      v: values, likewise.
      log_sums: log2 of each query's sum of exp2, ``(h, q_len)``, float32.
      deltas: the sum of ``o do`` of each query, likewise.
    """

    q: Ref
    do: Ref
    k: Ref
    v: Ref
    log_sums: Ref
    deltas: Ref


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid, in the order of its addresses.

    The first axis has two of a kind: ``q`` and ``do``, or ``k`` and ``v``; ``log_sums`` and
    ``deltas``.

    Attributes:
      numbers: a number of each query: ``(2, 2, 64)``, of two kinds and the second axis the
        computing warpgroup, if a tile has queries, and ``(slots, 64)`` if queries go by.
      own: the rows of each computing warpgroup, later their gradients, ``(2, 2, 64, d)``.
      passing: blocks that go by, the two kinds in turn, ``(slots, 64, d)``.
      products: what a computing warpgroup multiplies, ``(2, 2, 64, 64)``; None if the tensor core
        reads it from registers.
      shared: ``ds`` of both computing warpgroups for two blocks, ``(2, 2, 64, 64)``, keys by
        queries; None if ``dq`` has a kernel of its own.
      dq: what a computing warpgroup has of ``dq`` of a block, ``(2, 64, 64)``, float32; None
        likewise.
    """

    numbers: Ref
    own: Ref
    passing: Ref
    products: Ref | None
    shared: Ref | None
    dq: Ref | None


class _Barriers(NamedTuple):
    """Who waits for what.

    Attributes:
      own_ready: ``(2,)``: the rows of a computing warpgroup have arrived. It waits for its own.
      ready: ``(slots,)``: a block has arrived in a slot. Both computing warpgroups wait for it.
      free: ``(slots,)``: both have read the slot. The copying one waits before it fills it again.
      met: both computing warpgroups have written their ``ds`` of a block, and read all of that of
        the block before.
    """

    own_ready: Ref
    ready: Ref
    free: Ref
    met: Ref


@dataclasses.dataclass(frozen=True)
class _Tile:
    """A tile of 128 queries or keys of a head, as one of the three warpgroups sees it.

    Attributes:
      arrays: in global memory.
      buffers: in shared memory.
      barriers: between the warpgroups.
      settings: those of the forward kernel.
      head: the head of the tile.
      index: which tile of the head it is.
      warpgroup: 0 and 1 compute, 2 copies.
    """

    arrays: _Arrays
    buffers: _Buffers
    barriers: _Barriers
    settings: Settings
    head: jax.Array
    index: jax.Array
    warpgroup: jax.Array

    @property
    def group(self) -> int:
        """How many heads of queries read a head of keys."""
        return self.arrays.q.shape[0] // self.arrays.k.shape[0]

    @property
    def start(self) -> jax.Array:
        """The first of the 64 rows of this warpgroup."""
        return self.index * TILE + self.warpgroup * ROWS

    @property
    def rows(self) -> pl.Slice:
        """Where these rows are among those of the head."""
        return pl.ds(self.start, ROWS)

    @property
    def own(self) -> tuple[Ref, Ref]:
        """These rows of both arrays in shared memory, each ``(64, d)``."""
        return self.buffers.own.at[0, self.warpgroup], self.buffers.own.at[1, self.warpgroup]

    def slot(self, n: int, i: jax.Array) -> jax.Array:
        """Where the ``i``-th block of kind ``n`` that goes by is in shared memory."""
        return _slot(n, i, self.barriers.ready)

    def arrived(self, n: int, i: jax.Array) -> Ref:
        """The ``i``-th block of kind ``n``, ``(64, d)``, as soon as it has arrived."""
        slot = self.slot(n, i)
        plgpu.barrier_wait(self.barriers.ready.at[slot])
        return self.buffers.passing.at[slot]

    def free(self, n: int, i: jax.Array) -> None:
        """Let the ``i``-th block of kind ``n``, which this warpgroup has read, be overwritten."""
        plgpu.barrier_arrive(self.barriers.free.at[self.slot(n, i)])

    @property
    def takes_turns(self) -> bool:
        """Whether the computing warpgroups multiply every second block of ``dq``."""
        return self.arrays.q.shape[-1] == _WIDTH

    @property
    def columns_of_dq(self) -> pl.Slice:
        """The columns of ``dq`` that this warpgroup multiplies."""
        return pl.ds(0 if self.takes_turns else self.warpgroup * _WIDTH, _WIDTH)

    def left(self, n: int, value: jax.Array) -> jax.Array | Ref:
        """``value`` as the left side of product ``n``: in registers, or in shared memory."""
        if self.buffers.products is None:
            return value
        buffer = self.buffers.products.at[n, self.warpgroup]
        buffer[...] = value
        plgpu.commit_smem()
        return buffer


def _slot(n: int, i: Any, barriers: Ref) -> jax.Array:
    return jax.lax.rem(2 * i + n, jnp.int32(barriers.shape[0]))


def _copy_blocks(count: Any, copy: Callable[[int, Any, Any], None], free: Ref) -> None:
    """Copy ``count`` blocks of each of two kinds in turn, each as soon as its slot is free.

    Args:
      count: blocks of a kind.
      copy: starts the copy of a kind's block into a slot.
      free: barriers, one for each slot.
    """
    slots = free.shape[0]

    @pl.loop(0, count)
    def _block(i: jax.Array) -> None:
        for n in range(2):
            slot = _slot(n, i, free)
            pl.when(2 * i + n >= slots)(lambda slot=slot: plgpu.barrier_wait(free.at[slot]))
            copy(n, i, slot)

    @pl.loop(jnp.maximum(2 * count - slots, 0), 2 * count)
    def _leave(i: jax.Array) -> None:  # the interpreter of JAX 0.11 wants every phase to be seen
        plgpu.barrier_wait(free.at[jax.lax.rem(i, jnp.int32(slots))])


def _load_own(tile: _Tile, *copies: tuple[Ref, Ref]) -> None:
    """Copy rows of this warpgroup from arrays to buffers, and wait for all."""
    arrived = tile.barriers.own_ready.at[tile.warpgroup]
    for source, buffer in copies:
        plgpu.copy_gmem_to_smem(source.at[tile.head, tile.rows], buffer, arrived)
    plgpu.barrier_wait(arrived)


def _store_own(tile: _Tile, *gradients: tuple[jax.Array, Ref]) -> None:
    """Copy gradients of the rows of this warpgroup to arrays, through the place of the rows."""
    for (value, array), buffer in zip(gradients, tile.own, strict=False):
        buffer[...] = value.astype(array.dtype)
    plgpu.commit_smem()
    for (_, array), buffer in zip(gradients, tile.own, strict=False):
        plgpu.copy_smem_to_gmem(buffer, array.at[tile.head, tile.rows])
    plgpu.wait_smem_to_gmem(0)


def _hide(
    s: jax.Array, settings: Settings, edge: Any, query: Any, key: Any, *, keys: int = 1
) -> jax.Array:
    """The scores ``s``, hidden where nothing may be seen if this block is at the ``edge``."""

    def hidden(s: jax.Array) -> jax.Array:
        return settings.hide(s, query, key, keys=keys)

    return s if edge is None else jax.lax.cond(edge, hidden, lambda s: s, s)


def _queries_kernel(
    q: Ref,
    do: Ref,
    k: Ref,
    v: Ref,
    log_sums: Ref,
    deltas: Ref,
    dq: Ref,
    buffers: _Buffers,
    barriers: _Barriers,
    *,
    settings: Settings,
) -> None:
    """``dq (h, q_len, d)`` of a tile of queries, past which keys and values go."""
    tile = _Tile(
        arrays=_Arrays(q, do, k, v, log_sums, deltas),
        buffers=buffers,
        barriers=barriers,
        settings=settings,
        head=jax.lax.axis_index("head"),
        index=q.shape[1] // TILE - 1 - jax.lax.axis_index("tile"),
        warpgroup=jax.lax.axis_index("warpgroup"),
    )
    seen = settings.seen(tile.index, _BLOCK)
    roles(
        tile.warpgroup,
        copy=lambda: _copy_blocks(seen, functools.partial(_copy_keys, tile), barriers.free),
        compute=lambda: _compute_dq(tile, dq, seen),
    )


def _copy_keys(tile: _Tile, n: int, j: jax.Array, slot: jax.Array) -> None:
    """Start the copy of block ``j`` of keys or values."""
    kv_head = jax.lax.div(tile.head, jnp.int32(tile.group))
    block = (tile.arrays.k, tile.arrays.v)[n].at[kv_head, pl.ds(j * _BLOCK, _BLOCK)]
    plgpu.copy_gmem_to_smem(block, tile.buffers.passing.at[slot], tile.barriers.ready.at[slot])


def _compute_dq(tile: _Tile, dq: Ref, seen: Any) -> None:
    """The gradient of 64 queries, from the ``seen`` blocks of keys."""
    arrays, numbers = tile.arrays, tile.buffers.numbers
    q, do = tile.own
    _load_own(
        tile,
        (arrays.q, q),
        (arrays.do, do),
        (arrays.log_sums, numbers.at[0, tile.warpgroup]),
        (arrays.deltas, numbers.at[1, tile.warpgroup]),
    )
    log_sums, deltas = (
        over_columns(
            plgpu.load(numbers.at[n, tile.warpgroup], layout=plgpu.Layout.WGMMA.reduce(1)),
            (ROWS, _BLOCK),
        )
        for n in range(2)
    )

    def sum_up(total: Ref) -> jax.Array:
        pl.loop(0, seen)(lambda j: _add_to_dq(tile, total, log_sums, deltas, j))
        return total[...]

    total = pl.run_scoped(sum_up, plgpu.WGMMAAccumulatorRef((ROWS, q.shape[-1]), jnp.float32))
    _store_own(tile, (total * tile.settings.scale, dq))


def _add_to_dq(
    tile: _Tile, total: Ref, log_sums: jax.Array, deltas: jax.Array, j: jax.Array
) -> None:
    """Add the product of ``ds`` of block ``j`` and its keys to ``total``."""
    settings, (q, do) = tile.settings, tile.own
    k = tile.arrived(0, j)

    def ds_of(s: Ref, dp: Ref) -> jax.Array:
        plgpu.wgmma(s, q, k.transpose((1, 0)))
        plgpu.wgmma(dp, do, tile.arrived(1, j).transpose((1, 0)))
        scores = plgpu.wgmma_accumulator_load(s, wait_n=1)
        edge = j >= settings.whole(tile.index, _BLOCK) if settings.masks(_BLOCK) else None
        scores = _hide(scores, settings, edge, tile.start, j * _BLOCK)
        p = jnp.exp2(scores * settings.to_log2 - log_sums)
        return (p * (plgpu.wgmma_accumulator_load(dp) - deltas)).astype(k.dtype)

    ds = pl.run_scoped(ds_of, _ACC, _ACC)
    tile.free(1, j)
    plgpu.wgmma(total, tile.left(0, ds), k)
    plgpu.wgmma_wait(0)
    tile.free(0, j)


def _keys_kernel(
    k: Ref,
    v: Ref,
    q: Ref,
    do: Ref,
    log_sums: Ref,
    deltas: Ref,
    *rest: Any,
    settings: Settings,
) -> None:
    """``dk`` and ``dv (g, kv_len, d)`` of a tile of keys, past which queries of its heads go.

    If ``rest`` begins with a ``dq (h, q_len, d)``, float32, they add the tile's part of it.
    """
    *sums, dk, dv, buffers, barriers = rest
    dq = sums[0] if sums else None
    tile = _Tile(
        arrays=_Arrays(q, do, k, v, log_sums, deltas),
        buffers=buffers,
        barriers=barriers,
        settings=settings,
        head=jax.lax.axis_index("head"),
        index=jax.lax.axis_index("tile"),
        warpgroup=jax.lax.axis_index("warpgroup"),
    )
    first = settings.first_query(tile.index) // _BLOCK if settings.causal else 0
    passing = _Passing(tile, first, q.shape[1] // _BLOCK - first)
    roles(
        tile.warpgroup,
        copy=lambda: _copy_blocks(
            passing.count, functools.partial(_copy_queries, passing), barriers.free
        ),
        compute=lambda: _compute_dk_and_dv(passing, dq, dk, dv),
    )


@dataclasses.dataclass(frozen=True)
class _Passing:
    """The blocks of queries that go past a tile of keys, those of one head after the other.

    Attributes:
      tile: the tile.
      first: the first block of a head that sees a key of the tile.
      each: how many blocks of a head follow, with it.
    """

    tile: _Tile
    first: Any
    each: Any

    @property
    def count(self) -> Any:
        """How many blocks of all heads go by."""
        return self.tile.group * self.each

    def place(self, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The head and the first query of the ``i``-th block that goes by."""
        each = jnp.int32(self.each)
        head = self.tile.head * self.tile.group + jax.lax.div(i, each)
        return head, (self.first + jax.lax.rem(i, each)) * _BLOCK


def _copy_queries(passing: _Passing, n: int, i: jax.Array, slot: jax.Array) -> None:
    """Start the copies of the ``i``-th block of queries or cotangents, and of their numbers."""
    arrays, buffers = passing.tile.arrays, passing.tile.buffers
    ready = passing.tile.barriers.ready.at[slot]
    head, start = passing.place(i)
    here = head, pl.ds(start, _BLOCK)
    source, numbers = ((arrays.q, arrays.log_sums), (arrays.do, arrays.deltas))[n]
    plgpu.copy_gmem_to_smem(source.at[here], buffers.passing.at[slot], ready)
    plgpu.copy_gmem_to_smem(numbers.at[here], buffers.numbers.at[slot], ready)


def _compute_dk_and_dv(passing: _Passing, dq: Ref | None, dk: Ref, dv: Ref) -> None:
    """The gradients of 64 keys and values, or the columns of them that are this block's part."""
    tile = passing.tile
    k, v = tile.own
    width = min(k.shape[-1], _WIDEST)
    columns = pl.ds(jax.lax.axis_index("part") * width, width)
    _load_own(tile, (tile.arrays.k, k), (tile.arrays.v, v))
    if dq is not None:
        # Of the block before the first one, so that all are alike. It also says that the keys of
        # this warpgroup have arrived.
        zeros = plgpu.layout_cast(jnp.zeros((ROWS, _BLOCK), k.dtype), plgpu.Layout.WGMMA)
        _share(tile, zeros, 1)

    def sum_up(dk_total: Ref, dv_total: Ref) -> tuple[jax.Array, jax.Array]:
        pl.loop(0, passing.count)(
            lambda i: _add_to_dk_and_dv(passing, dq, dk_total, dv_total, columns, i)
        )
        return dk_total[...], dv_total[...]

    acc = plgpu.WGMMAAccumulatorRef((ROWS, width), jnp.float32)
    dk_value, dv_value = pl.run_scoped(sum_up, acc, acc)
    if dq is not None:
        plgpu.barrier_wait(tile.barriers.met)
        _add_to_dq_of_block(passing, dq, passing.count - 1)
        plgpu.barrier_arrive(tile.barriers.met)  # the keys of this warpgroup become gradients
        plgpu.barrier_wait(tile.barriers.met)
    dk_value *= tile.settings.scale
    if width < k.shape[-1]:  # part of a row is not contiguous, as TMA wants it
        _rows.store(dk.at[tile.head, tile.rows, columns], dk_value)
        _rows.store(dv.at[tile.head, tile.rows, columns], dv_value)
    else:
        _store_own(tile, (dk_value, dk), (dv_value, dv))


def _share(tile: _Tile, ds: jax.Array, i: Any) -> None:
    """Give the rounded ``ds`` of the ``i``-th block to the other computing warpgroup."""
    tile.buffers.shared.at[jax.lax.rem(i, jnp.int32(2)), tile.warpgroup][...] = ds
    plgpu.commit_smem()
    plgpu.barrier_arrive(tile.barriers.met)


def _start_dq(tile: _Tile, acc: Ref, i: jax.Array) -> None:
    """Start the product of all ``ds`` of the ``i``-th block and the columns of this warpgroup."""
    for warpgroup in range(CONSUMERS):
        ds = tile.buffers.shared.at[jax.lax.rem(i, jnp.int32(2)), warpgroup]
        keys = tile.buffers.own.at[0, warpgroup, :, tile.columns_of_dq]
        plgpu.wgmma(acc, ds.transpose((1, 0)), keys)


def _store_dq(passing: _Passing, dq: Ref, value: jax.Array, i: jax.Array) -> None:
    """Start to add ``value``, some columns of ``dq`` of the ``i``-th block, to memory."""
    tile = passing.tile
    head, start = passing.place(i)
    buffer = tile.buffers.dq.at[tile.warpgroup]
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the copy before has read it
    buffer[...] = value
    plgpu.commit_smem()
    here = head, pl.ds(start, _BLOCK), tile.columns_of_dq
    plgpu.copy_smem_to_gmem(buffer, dq.at[here], reduction_op="add")


def _add_to_dq_of_block(passing: _Passing, dq: Ref, i: jax.Array) -> None:
    """Add what this warpgroup multiplies of the ``i``-th block, if anything, to ``dq``."""
    tile = passing.tile

    def multiply(acc: Ref) -> jax.Array:
        _start_dq(tile, acc, i)
        return acc[...]

    def add() -> None:
        _store_dq(passing, dq, pl.run_scoped(multiply, _ACC), i)

    if tile.takes_turns:
        pl.when(jax.lax.rem(i, jnp.int32(CONSUMERS)) == tile.warpgroup)(add)
    else:
        add()


def _add_to_dk_and_dv(
    passing: _Passing, dq: Ref | None, dk: Ref, dv: Ref, columns: pl.Slice, i: jax.Array
) -> None:
    """Add ``p^T do`` of the ``i``-th block to ``dv``, then its ``ds^T q`` to ``dk``.

    The part of ``dq`` of the block before is added to ``dq``.
    """
    tile, settings = passing.tile, passing.tile.settings
    start, (k, v) = tile.start, tile.own
    masks = settings.masks(TILE)
    q = tile.arrived(0, i)

    def numbers(n: int) -> jax.Array:
        # Loaded where they are needed, because registers are scarce.
        ref = tile.buffers.numbers.at[tile.slot(n, i)]
        values = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0))
        return over_rows(values, (ROWS, _BLOCK))

    def p_of(s: Ref, *acc: Ref) -> tuple[jax.Array, ...]:
        plgpu.wgmma(s, k, q.transpose((1, 0)))
        if dq is not None:
            plgpu.barrier_wait(tile.barriers.met)
        for ref in acc:
            _start_dq(tile, ref, i + 1)  # as many blocks later as there is room for: that before
        scores, (_, query) = s[...], passing.place(i)
        edge = None
        if settings.causal:  # the first query does not see the last key
            edge = query + settings.offset < start + (ROWS - 1)
        elif masks:  # weights of padding may be infinite, and its keys are zero
            edge = start + ROWS > settings.kv_len
        scores = _hide(scores, settings, edge, query, start, keys=0)
        p = jnp.exp2(scores * settings.to_log2 - numbers(0))
        return p, *(ref[...] for ref in acc)

    def ds_of(dp: Ref) -> jax.Array:
        plgpu.wgmma(dp, v, do.transpose((1, 0)))
        return p * (dp[...] - numbers(1))

    both = dq is not None and not tile.takes_turns  # products at a time
    p, *values = pl.run_scoped(p_of, _ACC, *([_ACC] if both else []))
    if dq is not None:
        before = jnp.maximum(i - 1, 0)  # to the first block, zeros are added
        if both:
            _store_dq(passing, dq, *values, before)
        else:
            pl.when(i > 0)(lambda: _add_to_dq_of_block(passing, dq, before))
    do = tile.arrived(1, i)
    plgpu.wgmma(dv, tile.left(0, p.astype(q.dtype)), do.at[:, columns])
    if masks:  # the mask takes the registers of weights in flight
        plgpu.wgmma_wait(0)
    ds = pl.run_scoped(ds_of, _ACC)
    _free(tile, 1, i)
    rounded = ds.astype(q.dtype)
    if dq is not None:
        _share(tile, rounded, i)
    plgpu.wgmma(dk, tile.left(1, rounded), q.at[:, columns])
    plgpu.wgmma_wait(0)
    _free(tile, 0, i)


def _free(tile: _Tile, n: int, i: jax.Array) -> None:
    """Let both the ``i``-th block of kind ``n`` and its numbers be overwritten."""
    if tile.buffers.products is None:
        # Threads have read the numbers, and TMA overwrites them; ``left`` has no fence then.
        plgpu.commit_smem()
    tile.free(n, i)


def _call(
    body: Callable[..., None],
    name: str,
    own: tuple[jax.Array, jax.Array],
    passing: tuple[jax.Array, jax.Array],
    numbers: tuple[jax.Array, jax.Array],
    outputs: int,
    settings: Settings,
    *,
    numbers_pass: bool,
    dq: Any = None,
) -> Any:
    """Run a kernel over tiles of ``own``, past which blocks of ``passing`` go."""
    heads, length, d = own[0].shape
    dtype, slots = own[0].dtype, 4 if d <= _WIDEST else 3
    parts = pl.cdiv(d, _WIDEST) if outputs == 2 else 1  # two sums are too many for registers
    buffers = _Buffers(
        numbers=plgpu.SMEM((slots, ROWS) if numbers_pass else (2, CONSUMERS, ROWS), jnp.float32),
        own=in_shared(2, CONSUMERS, ROWS, d, dtype=dtype),
        passing=in_shared(slots, _BLOCK, d, dtype=dtype),
        products=None
        if settings.in_registers
        else in_shared(2, CONSUMERS, ROWS, _BLOCK, dtype=dtype),
        shared=None if dq is None else in_shared(2, CONSUMERS, ROWS, _BLOCK, dtype=dtype),
        dq=None if dq is None else _tiles.smem((CONSUMERS, _BLOCK, _WIDTH), jnp.float32),
    )
    barriers = _Barriers(  # arrivals: the matrices, and the numbers where they are
        own_ready=plgpu.Barrier(num_arrivals=2 if numbers_pass else 4, num_barriers=CONSUMERS),
        ready=plgpu.Barrier(num_arrivals=2 if numbers_pass else 1, num_barriers=slots),
        free=plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=slots),
        met=plgpu.Barrier(num_arrivals=CONSUMERS),
    )
    return plgpu.kernel(
        functools.partial(body, settings=settings),
        out_type=[jax.ShapeDtypeStruct(own[0].shape, dtype)] * outputs,
        scratch_types=(buffers, barriers),
        grid=(heads, length // TILE, parts),
        grid_names=("head", "tile", "part"),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name=name,
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(*own, *passing, *numbers, *([] if dq is None else [dq]))


def gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: jax.Array,
    log_sums: jax.Array,
    do: jax.Array,
    settings: Settings,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk`` and ``dv``, each like its operand.

    Args:
      q: queries ``(h, q_len, d)``, padded to whole tiles, like the others.
      k: keys ``(g, kv_len, d)``.
      v: values ``(g, kv_len, d)``.
      o: the output.
      log_sums: log2 of each query's sum of exp2, ``(h, q_len)``.
      do: the cotangent of the output; zero for padding.
      settings: those of the forward kernel.
    """
    delta = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)
    numbers = (log_sums, delta)
    name = "hopper_attention_backward"
    keys = functools.partial(
        *(_call, _keys_kernel, f"{name}_kv", (k, v), (q, do), numbers, 2, settings),
        numbers_pass=True,
    )
    if q.shape[-1] <= _WIDEST and not settings.deterministic:
        sums = jax.new_ref(jnp.zeros(q.shape, jnp.float32))
        dk, dv = keys(dq=sums)
        return (settings.scale * jax.freeze(sums)).astype(q.dtype), dk, dv
    (dq,) = _call(
        *(_queries_kernel, f"{name}_q", (q, do), (k, v), numbers, 1, settings), numbers_pass=False
    )
    dk, dv = keys()
    return dq, dk, dv
