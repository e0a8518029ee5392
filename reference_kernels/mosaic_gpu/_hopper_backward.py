"""Gradients of flash attention on a Hopper GPU, in two kernels.

With ``p = exp2(s - log_sum)`` computed again from the saved sums of the forward kernel, ``dp = do
v^T`` and ``delta_i = sum_j o_ij do_ij``: ``ds = p (dp - delta)``, ``dq = scale ds k``, ``dk = scale
ds^T q`` and ``dv = p^T do`` (Dao, "FlashAttention-2", 2023, arXiv:2307.08691, algorithm 2).

A tile of queries needs all keys, a tile of keys all queries. Each gets a kernel of its own, which
keeps what it sums up in registers, so no sum is in memory and nothing depends on the order of
blocks. The price is that scores and ``dp`` are computed twice, seven products instead of five.

The kernel of the keys computes the transposed scores, keys by queries. Then ``p^T`` and ``ds^T``
are accumulators with the keys as rows, and after rounding they are the left side of the next
product as they are, in registers. It goes over all heads of queries that read its keys, so
``dk`` and ``dv`` of a group are summed in float32 too.

As in the forward kernel, two warpgroups compute and one copies.

A ``d`` of 256 takes twice the room. In shared memory there is one block that goes by, instead of
two: its copies do not overlap with the products of the block before. In registers there is room for
half the columns of ``dk`` and ``dv``: another block of the grid has the other half, and computes
the scores once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels.mosaic_gpu import _rows
from reference_kernels.mosaic_gpu._hopper_blocks import (
    COMPUTE_REGISTERS,
    CONSUMERS,
    COPY_REGISTERS,
    ROWS,
    TILE,
    Settings,
    in_shared,
    over_columns,
    over_rows,
)

_BLOCK = ROWS  # queries or keys of a block that goes by
_WIDEST = 128  # columns of dk and dv that are summed up at a time
_ACC = plgpu.WGMMAAccumulatorRef((ROWS, _BLOCK), jnp.float32)


def _roles(copy: Callable[[], None], compute: Callable[[Any], None]) -> None:
    """One warpgroup copies, the others compute."""
    warpgroup = jax.lax.axis_index("warpgroup")

    @pl.when(warpgroup == CONSUMERS)
    def _copy() -> None:
        plgpu.set_max_registers(COPY_REGISTERS, action="decrease")
        copy()

    @pl.when(warpgroup < CONSUMERS)
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        compute(warpgroup)


def _copy_blocks(count: Any, stages: int, copies: Callable[[Any, Any], Any], free: Any) -> None:
    """Copy ``count`` blocks, each into the next slot as soon as it is free.

    Args:
      count: blocks.
      stages: slots.
      copies: starts the copies of a block into a slot.
      free: barriers, one for each slot.
    """

    @pl.loop(0, count)
    def _block(i: Any) -> None:
        slot = jax.lax.rem(i, jnp.int32(stages))
        pl.when(i >= stages)(lambda: plgpu.barrier_wait(free.at[slot]))
        copies(i, slot)

    @pl.loop(jnp.maximum(count - stages, 0), count)
    def _leave(i: Any) -> None:  # the interpreter of JAX 0.11 wants every phase to be seen
        plgpu.barrier_wait(free.at[jax.lax.rem(i, jnp.int32(stages))])


def _operand(value: jax.Array, buffer: Any | None) -> Any:
    """The left side of a product: ``value`` in registers, or in shared memory if there is some."""
    if buffer is None:
        return value
    buffer[...] = value
    plgpu.commit_smem()
    return buffer


def _scores(s: jax.Array, settings: Settings, edge: Any, *where: Any, keys: int = 1) -> jax.Array:
    """``s``, hidden where nothing may be seen if this block is at the ``edge``."""

    def hidden(s: jax.Array) -> jax.Array:
        return settings.hide(s, *where, keys=keys)

    return s if edge is None else jax.lax.cond(edge, hidden, lambda s: s, s)


def _queries_kernel(
    q_gmem: Any,
    do_gmem: Any,
    k_gmem: Any,
    v_gmem: Any,
    log_sum_gmem: Any,
    delta_gmem: Any,
    dq_gmem: Any,
    *,
    own_smem: Any,
    passing_smem: Any,
    numbers_smem: Any,
    product_smem: Any,
    own_ready: Any,
    ready: Any,
    free: Any,
    settings: Settings,
) -> None:
    head = jax.lax.axis_index("head")
    tile = q_gmem.shape[1] // TILE - 1 - jax.lax.axis_index("tile")
    stages = ready.shape[0]
    seen, whole = settings.seen(tile, _BLOCK), settings.whole(tile, _BLOCK)

    def copy() -> None:
        kv_head = jax.lax.div(head, jnp.int32(q_gmem.shape[0] // k_gmem.shape[0]))

        def copies(j: Any, slot: Any) -> None:
            for i, source in enumerate((k_gmem, v_gmem)):
                block = source.at[kv_head, pl.ds(j * _BLOCK, _BLOCK)]
                plgpu.copy_gmem_to_smem(block, passing_smem.at[i, slot], ready.at[slot])

        _copy_blocks(seen, stages, copies, free)

    def compute(warpgroup: Any) -> None:
        start = tile * TILE + warpgroup * ROWS
        rows, arrived = pl.ds(start, ROWS), own_ready.at[warpgroup]
        q, do = own_smem.at[0, warpgroup], own_smem.at[1, warpgroup]
        plgpu.copy_gmem_to_smem(q_gmem.at[head, rows], q, arrived)
        plgpu.copy_gmem_to_smem(do_gmem.at[head, rows], do, arrived)
        for i, source in enumerate((log_sum_gmem, delta_gmem)):
            plgpu.copy_gmem_to_smem(source.at[head, rows], numbers_smem.at[i, warpgroup], arrived)
        plgpu.barrier_wait(arrived)
        log_sum, delta = (
            over_columns(
                plgpu.load(numbers_smem.at[i, warpgroup], layout=plgpu.Layout.WGMMA.reduce(1)),
                (ROWS, _BLOCK),
            )
            for i in range(2)
        )

        def sum_up(dq: Any) -> jax.Array:
            @pl.loop(0, seen)
            def _block(j: Any) -> None:
                slot = jax.lax.rem(j, jnp.int32(stages))
                k, v = passing_smem.at[0, slot], passing_smem.at[1, slot]
                plgpu.barrier_wait(ready.at[slot])

                def ds_of(s: Any, dp: Any) -> jax.Array:
                    plgpu.wgmma(s, q, k.transpose((1, 0)))
                    plgpu.wgmma(dp, do, v.transpose((1, 0)))
                    s = plgpu.wgmma_accumulator_load(s, wait_n=1)
                    edge = j >= whole if settings.masks(_BLOCK) else None
                    s = _scores(s, settings, edge, start, j * _BLOCK)
                    p = jnp.exp2(s * settings.to_log2 - log_sum)
                    return (p * (plgpu.wgmma_accumulator_load(dp) - delta)).astype(k.dtype)

                ds = pl.run_scoped(ds_of, _ACC, _ACC)
                buffer = None if product_smem is None else product_smem.at[0, warpgroup]
                plgpu.wgmma(dq, _operand(ds, buffer), k)
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(free.at[slot])

            return dq[...]

        dq = pl.run_scoped(sum_up, plgpu.WGMMAAccumulatorRef((ROWS, q_gmem.shape[-1]), jnp.float32))
        q[...] = (dq * settings.scale).astype(dq_gmem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, dq_gmem.at[head, rows])
        plgpu.wait_smem_to_gmem(0)

    _roles(copy, compute)


def _keys_kernel(
    k_gmem: Any,
    v_gmem: Any,
    q_gmem: Any,
    do_gmem: Any,
    log_sum_gmem: Any,
    delta_gmem: Any,
    dk_gmem: Any,
    dv_gmem: Any,
    *,
    own_smem: Any,
    passing_smem: Any,
    numbers_smem: Any,
    product_smem: Any,
    own_ready: Any,
    ready: Any,
    free: Any,
    settings: Settings,
) -> None:
    kv_head, tile = jax.lax.axis_index("head"), jax.lax.axis_index("tile")
    group, stages = q_gmem.shape[0] // k_gmem.shape[0], ready.shape[0]
    width = min(k_gmem.shape[-1], _WIDEST)
    columns = pl.ds(jax.lax.axis_index("part") * width, width)  # of dk and dv
    blocks = q_gmem.shape[1] // _BLOCK  # of a head
    first = settings.first_query(tile) // _BLOCK if settings.causal else 0
    count = group * (blocks - first)

    def place(i: Any) -> tuple[Any, Any]:
        """The head and the first query of the ``i``-th block that goes by."""
        each = jnp.int32(blocks - first)
        return kv_head * group + jax.lax.div(i, each), (first + jax.lax.rem(i, each)) * _BLOCK

    def copy() -> None:
        def copies(i: Any, slot: Any) -> None:
            head, start = place(i)
            rows = pl.ds(start, _BLOCK)
            for n, (source, numbers) in enumerate(((q_gmem, log_sum_gmem), (do_gmem, delta_gmem))):
                plgpu.copy_gmem_to_smem(
                    source.at[head, rows], passing_smem.at[n, slot], ready.at[slot]
                )
                plgpu.copy_gmem_to_smem(
                    numbers.at[head, rows], numbers_smem.at[n, slot], ready.at[slot]
                )

        _copy_blocks(count, stages, copies, free)

    def compute(warpgroup: Any) -> None:
        start = tile * TILE + warpgroup * ROWS
        rows, arrived = pl.ds(start, ROWS), own_ready.at[warpgroup]
        k, v = own_smem.at[0, warpgroup], own_smem.at[1, warpgroup]
        plgpu.copy_gmem_to_smem(k_gmem.at[kv_head, rows], k, arrived)
        plgpu.copy_gmem_to_smem(v_gmem.at[kv_head, rows], v, arrived)
        plgpu.barrier_wait(arrived)

        def numbers(n: int, slot: Any) -> jax.Array:
            # Loaded where they are needed, because registers are scarce.
            values = plgpu.load(numbers_smem.at[n, slot], layout=plgpu.Layout.WGMMA.reduce(0))
            return over_rows(values, (ROWS, _BLOCK))

        def buffer(n: int) -> Any | None:
            return None if product_smem is None else product_smem.at[n, warpgroup]

        def sum_up(dk: Any, dv: Any) -> tuple[jax.Array, jax.Array]:
            @pl.loop(0, count)
            def _block(i: Any) -> None:
                slot = jax.lax.rem(i, jnp.int32(stages))
                q, do = passing_smem.at[0, slot], passing_smem.at[1, slot]
                plgpu.barrier_wait(ready.at[slot])

                def p_of(s: Any) -> jax.Array:
                    plgpu.wgmma(s, k, q.transpose((1, 0)))
                    s, (_, query) = s[...], place(i)
                    edge = None
                    if settings.causal:  # the first query does not see the last key
                        edge = query + settings.offset < start + (ROWS - 1)
                    s = _scores(s, settings, edge, query, start, keys=0)
                    return jnp.exp2(s * settings.to_log2 - numbers(0, slot))

                def ds_of(dp: Any) -> jax.Array:
                    plgpu.wgmma(dp, v, do.transpose((1, 0)))
                    return p * (dp[...] - numbers(1, slot))

                p = pl.run_scoped(p_of, _ACC)
                plgpu.wgmma(dv, _operand(p.astype(q.dtype), buffer(0)), do.at[:, columns])
                if settings.causal:  # the mask takes the registers of weights in flight
                    plgpu.wgmma_wait(0)
                ds = pl.run_scoped(ds_of, _ACC)
                plgpu.wgmma(dk, _operand(ds.astype(q.dtype), buffer(1)), q.at[:, columns])
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(free.at[slot])

            return dk[...], dv[...]

        acc = plgpu.WGMMAAccumulatorRef((ROWS, width), jnp.float32)
        dk, dv = pl.run_scoped(sum_up, acc, acc)
        dk *= settings.scale
        if width < k_gmem.shape[-1]:  # part of a row is not contiguous, as TMA wants it
            _rows.store(dk_gmem.at[kv_head, rows, columns], dk)
            _rows.store(dv_gmem.at[kv_head, rows, columns], dv)
            return
        k[...] = dk.astype(dk_gmem.dtype)
        v[...] = dv.astype(dv_gmem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(k, dk_gmem.at[kv_head, rows])
        plgpu.copy_smem_to_gmem(v, dv_gmem.at[kv_head, rows])
        plgpu.wait_smem_to_gmem(0)

    _roles(copy, compute)


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
) -> Any:
    """Run a kernel over tiles of ``own``, past which blocks of ``passing`` go."""
    heads, length, d = own[0].shape
    dtype, stages = own[0].dtype, 2 if d <= _WIDEST else 1
    parts = pl.cdiv(d, _WIDEST) if outputs == 2 else 1  # two sums are too many for registers

    def kernel(*refs: Any, **scratch: Any) -> None:
        body(*refs, settings=settings, **scratch)

    kernel.__name__ = name
    scratch: dict[str, Any] = {
        "own_smem": in_shared(2, CONSUMERS, ROWS, d, dtype=dtype),
        "passing_smem": in_shared(2, stages, _BLOCK, d, dtype=dtype),
        "numbers_smem": plgpu.SMEM((2, stages if numbers_pass else CONSUMERS, ROWS), jnp.float32),
        "product_smem": None
        if settings.in_registers
        else in_shared(2, CONSUMERS, ROWS, _BLOCK, dtype=dtype),
        # The matrices, and the numbers where they are.
        "own_ready": plgpu.Barrier(num_arrivals=2 if numbers_pass else 4, num_barriers=CONSUMERS),
        "ready": plgpu.Barrier(num_arrivals=4 if numbers_pass else 2, num_barriers=stages),
        "free": plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=stages),
    }
    return plgpu.kernel(
        kernel,
        out_type=[jax.ShapeDtypeStruct(own[0].shape, dtype)] * outputs,
        scratch_types=scratch,
        grid=(heads, length // TILE, parts),
        grid_names=("head", "tile", "part"),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(*own, *passing, *numbers)


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
    (dq,) = _call(
        _queries_kernel, f"{name}_q", (q, do), (k, v), numbers, 1, settings, numbers_pass=False
    )

    dk, dv = _call(
        _keys_kernel, f"{name}_kv", (k, v), (q, do), numbers, 2, settings, numbers_pass=True
    )
    return dq, dk, dv
