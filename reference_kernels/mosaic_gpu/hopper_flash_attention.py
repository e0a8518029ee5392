"""Flash attention on a Hopper GPU: ``o = softmax(scale q k^T) v`` by blocks of keys.

Shapes: ``q (b, h, q_len, d)``, ``k`` and ``v`` ``(b, g, kv_len, d)``, ``o`` like ``q``; ``d`` is
64, 128 or 256, and ``g`` divides ``h``: head ``i`` of the queries reads head ``i // (h / g)`` of
the keys, so one head of keys is multi-query attention. Dtypes: bfloat16 or float16, the same for
all; scores and sums are float32.

Sources: Dao et al., "FlashAttention", 2022 (arXiv:2205.14135); Shah et al., "FlashAttention-3",
2024 (arXiv:2407.08608), for what follows; PTX ISA, wgmma.mma_async and setmaxnreg.

The tensor cores of an SM compute the two products of a block of 128 keys in about the time that its
other units need for the exponentials between. So both must run all the time, which takes two forms
of overlap:

- *between warpgroups*: two of them have 64 queries each. A pair of barriers passes a turn back and
  forth: who has it gives its products to the tensor cores, passes it on, and goes on to the softmax
  while the other's products run.
- *within a warpgroup*: in its turn, it asks for the scores of block ``j`` first, and then for the
  product of the weights of block ``j - 1`` with the values. ``wgmma`` is asynchronous and finishes
  in order, so the softmax of block ``j`` starts as soon as the scores are there, while the second
  product still runs. Its result is rounded when that has ended, in the registers of the weights
  that it read.

A third warpgroup does nothing but start copies, K and V of a block apart, ``stages`` blocks ahead.
It gives its registers to the others, 240 a thread: of these, the output takes 64 for a ``d`` of
128, the scores 64 and the weights 32. For a ``d`` of 256 the output takes 128. Then blocks have 64
keys, whose scores and weights take half, shared memory has two of them instead of three, and a
warpgroup computes one product after the other: overlap is left to the two warpgroups.

Whether a block needs a mask is a branch inside of one loop. Two loops, without and with a mask,
meet at a point where weights are copied between registers while ``wgmma`` reads them, and ptxas
then makes all products wait for each other.

Causal masking is aligned at the bottom right: query ``i`` sees the keys up to
``i + kv_len - q_len``. With more queries than keys, the first ones see none: their output is zero.
Lengths that are no multiple of 128 are padded, at the cost of a copy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu._hopper_backward import gradients
from reference_kernels.mosaic_gpu._hopper_blocks import (
    CONSUMERS,
    ROWS,
    TILE,
    Settings,
    in_shared,
    of_rows,
    over_columns,
    padded,
    roles,
    zeros,
)

_SHARED = 227 * 1024  # bytes of shared memory that a block of the grid can have
_WIDEST = 128  # the d for which a warpgroup has room for two products at a time
_KEYS, _VALUES = 0, 1  # which copy a barrier is about


class _Arrays(NamedTuple):
    """Arrays in global memory; lengths are whole tiles.

    Attributes:
      q: queries, ``(h, q_len, d)``.
      k: keys, ``(g, kv_len, d)``.
      v: values, ``(g, kv_len, d)``.
      o: the output, ``(h, q_len, d)``.
      log_sums: log2 of each query's sum of exp2, ``(h, q_len)``, float32; None if no gradient needs
        it.
    """

    q: Ref
    k: Ref
    v: Ref
    o: Ref
    log_sums: Ref | None


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid, in the order of its addresses.

    With ``q`` before ``k``, ptxas spills 8 bytes of a thread (CUDA 13.5).

    Attributes:
      k: blocks of keys, ``(stages, block_kv, d)``; the first axis is the slot.
      v: blocks of values, likewise.
      q: for each computing warpgroup its queries, later their output, ``(2, 64, d)``.
      weights: the weights of each computing warpgroup, ``(2, 64, block_kv)``; None if the tensor
        core reads them from registers.
      log_sums: for each computing warpgroup, ``(2, 64)``, float32.
    """

    k: Ref
    v: Ref
    q: Ref
    weights: Ref | None
    log_sums: Ref


class _Barriers(NamedTuple):
    """Who waits for what.

    Attributes:
      q_ready: ``(2,)``: the queries of a computing warpgroup have arrived. It waits for its own.
      ready: ``(2, stages)``: the keys, or values, of a slot have arrived. Both computing warpgroups
        wait for them.
      free: ``(2, stages)``: both computing warpgroups have read the keys, or values, of a slot. The
        copying one waits before it fills the slot again.
      turn: ``(2,)``: a computing warpgroup may start its products. The other one arrives when it
        has started its own.
    """

    q_ready: Ref
    ready: Ref
    free: Ref
    turn: Ref


class _Softmax(NamedTuple):
    """The softmax of 64 queries over the keys that went by.

    Attributes:
      top: the largest score, as ``exp2`` takes it, ``(64,)``; -inf if no key was seen.
      total: the sum of the weights ``2 ** (score - top)``, ``(64,)``.
    """

    top: jax.Array
    total: jax.Array


class _Weighed(NamedTuple):
    """A block of keys after its softmax, or references to that.

    Attributes:
      weights: float32, ``(64, block_kv)``.
      rescale: what the output of the blocks before is to be multiplied by, ``(64,)``.
      softmax: with this block.
    """

    weights: Any
    rescale: Any
    softmax: Any


class _Overlapped(NamedTuple):
    """What the loop over blocks carries if the output is one block behind the scores.

    Attributes:
      out: the output without the last block, ``(64, d)``.
      weights: of the last block, rounded, ``(64, block_kv)``; None if they are in shared memory.
      softmax: with the last block.
    """

    out: jax.Array
    weights: jax.Array | None
    softmax: _Softmax


@dataclasses.dataclass(frozen=True)
class _Tile:
    """A tile of 128 queries of a head, as one of the three warpgroups sees it.

    Attributes:
      arrays: in global memory.
      buffers: in shared memory.
      barriers: between the warpgroups.
      settings: what is known before the kernel runs.
      head: the head of the queries.
      warpgroup: 0 and 1 compute, 2 copies.
      start: the first of the 64 queries of this warpgroup.
      seen: how many blocks of keys the queries see.
      whole: how many of these, from the first on, need no mask.
    """

    arrays: _Arrays
    buffers: _Buffers
    barriers: _Barriers
    settings: Settings
    head: jax.Array
    warpgroup: jax.Array
    start: jax.Array
    seen: jax.Array
    whole: jax.Array

    @property
    def q(self) -> Ref:
        """The queries of this warpgroup in shared memory, ``(64, d)``."""
        return self.buffers.q.at[self.warpgroup]

    @property
    def rows(self) -> pl.Slice:
        """Where these queries are among those of the head."""
        return pl.ds(self.start, ROWS)

    @property
    def scores_type(self) -> plgpu.WGMMAAccumulatorRef:
        """Registers for a product with keys, ``(64, block_kv)``."""
        return plgpu.WGMMAAccumulatorRef((ROWS, self.settings.block_kv), jnp.float32)

    @property
    def out_type(self) -> plgpu.WGMMAAccumulatorRef:
        """Registers for a product with values, ``(64, d)``."""
        return plgpu.WGMMAAccumulatorRef((ROWS, self.q.shape[-1]), jnp.float32)

    def slot(self, block: int | jax.Array) -> jax.Array:
        """Where in shared memory a block of keys or values is."""
        return jax.lax.rem(jnp.int32(block), jnp.int32(self.settings.stages))

    def wait_for_turn(self) -> None:
        """Wait until this warpgroup may start its products."""
        plgpu.barrier_wait(self.barriers.turn.at[self.warpgroup])

    def pass_turn(self) -> None:
        """Let the other computing warpgroup start its products."""
        plgpu.barrier_arrive(self.barriers.turn.at[1 - self.warpgroup])


def _attention_kernel(
    q: Ref,
    k: Ref,
    v: Ref,
    o: Ref,
    log_sums: Ref | None,
    buffers: _Buffers,
    barriers: _Barriers,
    *,
    settings: Settings,
) -> None:
    """Give each warpgroup its role; see ``_Arrays`` for the first five."""
    warpgroup = jax.lax.axis_index("warpgroup")
    # Causal tiles have work in proportion to their number: the long ones first.
    index = pl.cdiv(settings.q_len, TILE) - 1 - jax.lax.axis_index("tile")
    tile = _Tile(
        arrays=_Arrays(q, k, v, o, log_sums),
        buffers=buffers,
        barriers=barriers,
        settings=settings,
        head=jax.lax.axis_index("head"),
        warpgroup=warpgroup,
        start=index * TILE + warpgroup * ROWS,
        seen=settings.seen(index, settings.block_kv),
        whole=settings.whole(index, settings.block_kv),
    )
    roles(tile.warpgroup, copy=lambda: _copy_blocks(tile), compute=lambda: _attend_tile(tile))


def _copy_blocks(tile: _Tile) -> None:
    """Copy the keys and values that the tile sees, each block as soon as its slot is free."""
    arrays, buffers, settings = tile.arrays, tile.buffers, tile.settings
    ready, free = tile.barriers.ready, tile.barriers.free
    kv_head = jax.lax.div(tile.head, jnp.int32(arrays.q.shape[0] // arrays.k.shape[0]))

    @pl.loop(0, tile.seen)
    def _block(j: jax.Array) -> None:
        slot, rows = tile.slot(j), pl.ds(j * settings.block_kv, settings.block_kv)
        for i, source, buffer in ((_KEYS, arrays.k, buffers.k), (_VALUES, arrays.v, buffers.v)):
            pl.when(j >= settings.stages)(lambda i=i: plgpu.barrier_wait(free.at[i, slot]))
            plgpu.copy_gmem_to_smem(source.at[kv_head, rows], buffer.at[slot], ready.at[i, slot])

    @pl.loop(jnp.maximum(tile.seen - settings.stages, 0), tile.seen)
    def _leave(j: jax.Array) -> None:  # the interpreter of JAX 0.11 wants every phase to be seen
        for i in (_KEYS, _VALUES):
            plgpu.barrier_wait(free.at[i, tile.slot(j)])


def _attend_tile(tile: _Tile) -> None:
    """Compute the output of 64 queries, a block of keys after the other."""
    _load_queries(tile)
    pl.when(tile.warpgroup == 1)(tile.pass_turn)  # warpgroup 0 begins
    wide = tile.q.shape[-1] > _WIDEST
    out, softmax = (_attend_serially if wide else _attend_overlapped)(tile)
    _store_output(tile, out, softmax)


def _load_queries(tile: _Tile) -> None:
    """Copy the queries of this warpgroup to shared memory, and wait for them."""
    arrived = tile.barriers.q_ready.at[tile.warpgroup]
    plgpu.copy_gmem_to_smem(tile.arrays.q.at[tile.head, tile.rows], tile.q, arrived)
    plgpu.barrier_wait(arrived)


def _attend_overlapped(tile: _Tile) -> tuple[jax.Array, _Softmax]:
    """The output before the division by its total: the softmax of a block while products run."""
    first = pl.run_scoped(functools.partial(_weigh_first, tile), tile.scores_type)
    carry = _Overlapped(
        out=zeros(ROWS, tile.q.shape[-1]),
        weights=_round_weights(tile, first.weights),
        softmax=first.softmax,
    )
    out, weights, softmax = jax.lax.fori_loop(
        1, tile.seen, functools.partial(_attend_block_overlapped, tile), carry
    )
    out += pl.run_scoped(functools.partial(_multiply_last, tile, weights), tile.out_type)
    plgpu.barrier_arrive(tile.barriers.free.at[_VALUES, tile.slot(tile.seen - 1)])
    return out, softmax


def _weigh_first(tile: _Tile, scores: Ref) -> _Weighed:
    """The weights of block 0; no product of values is due yet."""
    tile.wait_for_turn()
    _wait_for_keys(tile, 0)
    _start_scores(tile, scores, 0)
    tile.pass_turn()
    plgpu.wgmma_wait(0)
    return _weigh(tile, scores, _Softmax(of_rows(-jnp.inf), of_rows(0.0)), 0)


def _attend_block_overlapped(tile: _Tile, j: jax.Array, carry: _Overlapped) -> _Overlapped:
    """Weigh block ``j`` while the values of block ``j - 1`` are multiplied."""
    step = _step_in_registers if tile.settings.in_registers else _step_in_shared_memory
    out, (weights, rescale, softmax) = step(tile, j, carry)
    plgpu.barrier_arrive(tile.barriers.free.at[_VALUES, tile.slot(j - 1)])
    return _Overlapped(
        out * over_columns(rescale, out.shape), _round_weights(tile, weights), softmax
    )


def _step_in_registers(tile: _Tile, j: jax.Array, carry: _Overlapped) -> tuple[jax.Array, _Weighed]:
    """The output with block ``j - 1``, which the tensor core adds, and block ``j`` weighed."""

    def multiply(refs: tuple[Ref, _Weighed]) -> None:
        out, results = refs
        weighed = pl.run_scoped(
            lambda scores: _multiply_and_weigh(tile, scores, out, carry, j), tile.scores_type
        )
        results.weights[...] = weighed.weights
        results.rescale[...] = weighed.rescale
        results.softmax.top[...] = weighed.softmax.top
        results.softmax.total[...] = weighed.softmax.total

    # An accumulator with numbers in it is to be had by run_state only, which has no results but
    # references; what they hold at first is not read.
    total = carry.softmax.total
    results = _Weighed(zeros(ROWS, tile.settings.block_kv), total, carry.softmax)
    state: Any = plgpu.WGMMAAccumulatorRef.init(carry.out), results
    return pl.run_state(multiply)(state)


def _step_in_shared_memory(
    tile: _Tile, j: jax.Array, carry: _Overlapped
) -> tuple[jax.Array, _Weighed]:
    """The output with block ``j - 1``, which the threads add, and block ``j`` weighed."""

    def multiply(scores: Ref, product: Ref) -> tuple[_Weighed, jax.Array]:
        weighed = _multiply_and_weigh(tile, scores, product, carry, j)
        return weighed, plgpu.wgmma_accumulator_load(product)

    weighed, product = pl.run_scoped(multiply, tile.scores_type, tile.out_type)
    return carry.out + product, weighed


def _multiply_and_weigh(
    tile: _Tile, scores: Ref, out: Ref, carry: _Overlapped, j: jax.Array
) -> _Weighed:
    """Weigh block ``j`` while the product of block ``j - 1`` is added to ``out``."""
    tile.wait_for_turn()
    _start_scores(tile, scores, j)
    _start_output(tile, out, carry.weights, j - 1)
    tile.pass_turn()
    return _weigh(tile, scores, carry.softmax, j)


def _multiply_last(tile: _Tile, weights: jax.Array | None, out: Ref) -> jax.Array:
    """The product of the last block; no scores are due any more."""
    tile.wait_for_turn()
    _start_output(tile, out, weights, tile.seen - 1)
    pl.when(tile.warpgroup == 0)(tile.pass_turn)
    return out[...]


def _attend_serially(tile: _Tile) -> tuple[jax.Array, _Softmax]:
    """The same, one product after the other: a wide output leaves no registers for two."""
    _wait_for_keys(tile, 0)
    carry = zeros(ROWS, tile.q.shape[-1]), _Softmax(of_rows(-jnp.inf), of_rows(0.0))
    return jax.lax.fori_loop(0, tile.seen, functools.partial(_attend_block_serially, tile), carry)


def _attend_block_serially(
    tile: _Tile, j: jax.Array, carry: tuple[jax.Array, _Softmax]
) -> tuple[jax.Array, _Softmax]:
    """Weigh block ``j``, then add the product with its values to the output."""
    out, softmax = carry

    def weigh(scores: Ref) -> _Weighed:
        tile.wait_for_turn()
        _start_scores(tile, scores, j)
        pl.when(jnp.logical_or(tile.warpgroup == 0, j + 1 < tile.seen))(tile.pass_turn)
        return _weigh(tile, scores, softmax, j, running=0)

    weighed = pl.run_scoped(weigh, tile.scores_type)
    out *= over_columns(weighed.rescale, out.shape)
    weights = _round_weights(tile, weighed.weights)
    if tile.settings.in_registers:
        state: Any = plgpu.WGMMAAccumulatorRef.init(out)
        out = pl.run_state(lambda out: _start_output(tile, out, weights, j))(state)
    else:

        def multiply(product: Ref) -> jax.Array:
            _start_output(tile, product, weights, j)
            return product[...]

        out += pl.run_scoped(multiply, tile.out_type)
    plgpu.barrier_arrive(tile.barriers.free.at[_VALUES, tile.slot(j)])
    return out, weighed.softmax


def _wait_for_keys(tile: _Tile, j: int | jax.Array) -> None:
    """Wait until the keys of block ``j`` have arrived."""
    plgpu.barrier_wait(tile.barriers.ready.at[_KEYS, tile.slot(j)])


def _start_scores(tile: _Tile, scores: Ref, j: int | jax.Array) -> None:
    """Start ``q k^T`` of block ``j``, whose keys have arrived."""
    plgpu.wgmma(scores, tile.q, tile.buffers.k.at[tile.slot(j)].transpose((1, 0)))


def _start_output(tile: _Tile, out: Ref, weights: jax.Array | None, j: jax.Array) -> None:
    """Start to add the weights of block ``j`` times its values to ``out``."""
    plgpu.barrier_wait(tile.barriers.ready.at[_VALUES, tile.slot(j)])
    buffer = tile.buffers.weights
    left = weights if buffer is None else buffer.at[tile.warpgroup]
    plgpu.wgmma(out, left, tile.buffers.v.at[tile.slot(j)])


def _weigh(
    tile: _Tile, scores: Ref, softmax: _Softmax, j: int | jax.Array, *, running: int = 1
) -> _Weighed:
    """A step of the softmax: the weights of block ``j``, and what they change.

    It waits for the scores, frees the keys of the block, and waits for those of the next.

    Args:
      tile: the tile.
      scores: being computed, ``(64, block_kv)``.
      softmax: before this block.
      j: the block.
      running: products started after the scores, which may go on.
    """
    settings, barriers = tile.settings, tile.barriers
    masks = settings.masks(settings.block_kv)
    s = plgpu.wgmma_accumulator_load(scores, wait_n=running)
    plgpu.barrier_arrive(barriers.free.at[_KEYS, tile.slot(j)])
    if masks:
        s = jax.lax.cond(
            j >= tile.whole,
            lambda s: settings.hide(s, tile.start, j * settings.block_kv),
            lambda s: s,
            s,
        )
    top = jnp.maximum(softmax.top, jnp.max(s, axis=1) * settings.to_log2)
    # A query that has seen nothing yet has the maximum -inf, and -inf - -inf is NaN.
    shift = jnp.where(top == -jnp.inf, 0.0, top) if masks else top
    p = jnp.exp2(s * settings.to_log2 - over_columns(shift, s.shape))
    rescale = jnp.exp2(softmax.top - shift)
    total = softmax.total * rescale + jnp.sum(p, axis=1)
    # Before the branch that follows, which keeps ptxas from moving exp2 behind the other product.
    p, rescale, top, total = jax.lax.optimization_barrier((p, rescale, top, total))
    pl.when(j + 1 < tile.seen)(lambda: _wait_for_keys(tile, j + 1))
    return _Weighed(p, rescale, _Softmax(top, total))


def _round_weights(tile: _Tile, weights: jax.Array) -> jax.Array | None:
    """Weights as the tensor core takes them: in registers, or None if in shared memory."""
    # Not earlier: ptxas puts them where the product before reads its own.
    rounded = jax.lax.optimization_barrier(weights).astype(tile.q.dtype)
    buffer = tile.buffers.weights
    if buffer is None:
        return rounded
    buffer[tile.warpgroup] = rounded
    plgpu.commit_smem()
    return None


def _store_output(tile: _Tile, out: jax.Array, softmax: _Softmax) -> None:
    """Divide the output by the total and copy it to global memory, with the sums if wanted."""
    arrays, buffers, here = tile.arrays, tile.buffers, (tile.head, tile.rows)
    nothing = softmax.total == 0.0
    out *= over_columns(1.0 / jnp.where(nothing, 1.0, softmax.total), out.shape)
    tile.q[...] = out.astype(tile.q.dtype)
    if arrays.log_sums is not None:
        log_sums = softmax.top + jnp.log(softmax.total) * math.log2(math.e)
        buffers.log_sums[tile.warpgroup] = jnp.where(nothing, jnp.inf, log_sums)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(tile.q, arrays.o.at[here])
    if arrays.log_sums is not None:
        plgpu.copy_smem_to_gmem(buffers.log_sums.at[tile.warpgroup], arrays.log_sums.at[here])
    plgpu.wait_smem_to_gmem(0)


def _call(
    q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings, *, save: bool
) -> tuple[jax.Array, jax.Array | None]:
    """The output and, if ``save``, each query's log2 of its sum of exp2, ``(h, q_len)``."""
    heads, q_len, d = q.shape
    stages, block_kv = settings.stages, settings.block_kv
    buffers = _Buffers(
        k=in_shared(stages, block_kv, d, dtype=q.dtype),
        v=in_shared(stages, block_kv, d, dtype=q.dtype),
        q=in_shared(CONSUMERS, ROWS, d, dtype=q.dtype),
        weights=None
        if settings.in_registers
        else in_shared(CONSUMERS, ROWS, block_kv, dtype=q.dtype),
        log_sums=plgpu.SMEM((CONSUMERS, ROWS), jnp.float32),
    )
    barriers = _Barriers(
        q_ready=plgpu.Barrier(num_barriers=CONSUMERS),
        ready=plgpu.Barrier(num_barriers=(2, stages)),
        free=plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=(2, stages)),
        turn=plgpu.Barrier(num_barriers=CONSUMERS),
    )
    return plgpu.kernel(
        functools.partial(_attention_kernel, settings=settings),
        out_type=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((heads, q_len), jnp.float32) if save else None,
        ),
        scratch_types=(buffers, barriers),
        grid=(heads, q_len // TILE),
        grid_names=("head", "tile"),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="hopper_flash_attention",
        # No sum is over warps, so none needs memory to meet in: room for the third stage.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings) -> jax.Array:
    return _call(q, k, v, settings, save=False)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings
) -> tuple[jax.Array, tuple[Any, ...]]:
    o, log_sums = _call(q, k, v, settings, save=True)
    return o, (q, k, v, o, log_sums)


def _backward(settings: Settings, saved: Any, do: jax.Array) -> tuple[jax.Array, ...]:
    return gradients(*saved, do=do, settings=settings)


_attend.defvjp(_forward, _backward)


def most_stages(d: int, block_kv: int, *, in_registers: bool = True) -> int:
    """How many blocks of keys, and as many of values, shared memory has room for.

    Args:
      d: elements of a key, of 16 bits.
      block_kv: keys of a block.
      in_registers: as in ``hopper_flash_attention``.
    """
    queries = TILE * (d if in_registers else d + block_kv) * 2
    log_sums, barriers = 1024, 8 * 4  # JAX gives an array whole kilobytes
    return (_SHARED - queries - log_sums - barriers) // (2 * block_kv * d * 2 + barriers)


def hopper_flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_kv: int | None = None,
    stages: int | None = None,
    in_registers: bool = True,
    deterministic: bool = False,
) -> jax.Array:
    """Attention of ``h`` heads of queries to ``g`` heads of keys, in ``b`` batches.

    It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries, ``(b, h, q_len, d)``, bfloat16 or float16; ``d`` is 64, 128 or 256.
      k: keys, ``(b, g, kv_len, d)``; ``g`` divides ``h``: 1 is multi-query attention.
      v: values, ``(b, g, kv_len, d)``.
      causal: query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores, positive; ``d ** -0.5`` by default.
      block_kv: keys of a block, 64 or 128; by default 128, or 64 for a ``d`` of 256, which allows
        no more.
      stages: blocks of keys and of values in shared memory, at least 2 and at most
        ``most_stages``; by default 2: on an H200 more are no faster.
      in_registers: let the tensor core take the weights from registers and add to the output there.
        Otherwise the weights go through shared memory, and the products are added by the threads:
        the GPU interpreter can do that, but it takes as many registers again for the output, and
        with blocks of more than 64 keys they do not suffice.
      deterministic: compute the gradient of ``q`` in a kernel of its own, in which nothing depends
        on the order of blocks, as it is always done for a ``d`` of 256. Otherwise its last bits
        differ from run to run, and the backward pass takes five products instead of seven.

    Returns:
      ``(b, h, q_len, d)``, of the dtype of ``q``; zero for a query that sees no key.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``g`` does not divide ``h``, or an
        option is out of its range.
    """
    b, h, q_len, d = _require.axes("q", q, "b h q_len d")
    sizes = {"b": ("q", b), "d": ("q", d)}
    for name, operand in (("k", k), ("v", v)):
        for axis, size in zip(
            ["b", "g", "kv_len", "d"], _require.axes(name, operand, "b g kv_len d"), strict=True
        ):
            _require.same_size(axis, sizes.setdefault(axis, (name, size)), (name, size))
    g, kv_len = sizes["g"][1], sizes["kv_len"][1]
    if h % g:
        raise ValueError(
            f"k must have a number of heads g that divides the h of q, {h}, but its g is {g}"
        )
    if d not in (64, 128, 256):
        raise ValueError(f"q must have a d of 64, 128 or 256, but its d is {d}")
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"q must be bfloat16 or float16, but its dtype is {q.dtype}")
    _require.same_dtype(q=q, k=k, v=v)
    factor = d**-0.5 if scale is None else scale
    if not factor > 0:
        raise ValueError(f"scale must be positive, but it is {factor!r}")
    wide = d > _WIDEST
    block_kv = (64 if wide else 128) if block_kv is None else block_kv
    if wide and block_kv != 64:
        raise ValueError(f"block_kv must be 64 for a d of 256, but it is {block_kv}")
    if block_kv not in (64, 128):
        raise ValueError(f"block_kv must be 64 or 128, but it is {block_kv}")
    most = most_stages(d, block_kv, in_registers=in_registers)
    stages = 2 if stages is None else stages
    _require.positive(stages=stages)
    if stages == 1:
        raise ValueError("stages must be at least 2: with 1, the copies wait for each other")
    if stages > most:
        raise ValueError(
            f"stages must be at most {most} for a d of {d} and a block_kv of {block_kv}, because "
            f"a block has {_SHARED:,} bytes of shared memory, but it is {stages}"
        )
    settings = Settings(
        q_len, kv_len, causal, factor, block_kv, stages, in_registers, deterministic
    )
    o = _attend(
        *(
            padded(jnp.reshape(operand, (-1, *operand.shape[2:])), rows)
            for operand, rows in ((q, TILE), (k, TILE), (v, TILE))
        ),
        settings,
    )
    return o[:, :q_len].reshape(q.shape)
