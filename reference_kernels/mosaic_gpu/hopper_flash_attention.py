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

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu._hopper_backward import gradients
from reference_kernels.mosaic_gpu._hopper_blocks import (
    COMPUTE_REGISTERS,
    CONSUMERS,
    COPY_REGISTERS,
    ROWS,
    TILE,
    Settings,
    in_shared,
    of_rows,
    over_columns,
    padded,
    zeros,
)

Weights = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

_WIDEST = 128  # the d for which a warpgroup has room for two products at a time


def _attention_kernel(
    q_gmem: Any,
    k_gmem: Any,
    v_gmem: Any,
    o_gmem: Any,
    log_sum_gmem: Any,
    q_smem: Any,
    k_smem: Any,
    v_smem: Any,
    weights_smem: Any,
    log_sum_smem: Any,
    q_ready: Any,
    ready: Any,
    free: Any,
    turn: Any,
    *,
    settings: Settings,
) -> None:
    head, warpgroup = jax.lax.axis_index("head"), jax.lax.axis_index("warpgroup")
    # Causal tiles have work in proportion to their number: the long ones first.
    tile = pl.cdiv(settings.q_len, TILE) - 1 - jax.lax.axis_index("tile")
    seen, whole = settings.seen(tile, settings.block_kv), settings.whole(tile, settings.block_kv)
    wide = q_smem.shape[-1] > _WIDEST

    @pl.when(warpgroup == CONSUMERS)
    def _copy() -> None:
        plgpu.set_max_registers(COPY_REGISTERS, action="decrease")
        kv_head = jax.lax.div(head, jnp.int32(q_gmem.shape[0] // k_gmem.shape[0]))

        @pl.loop(0, seen)
        def _block(j: Any) -> None:
            slot = jax.lax.rem(j, jnp.int32(settings.stages))
            rows = pl.ds(j * settings.block_kv, settings.block_kv)
            for i, (source, buffer) in enumerate(((k_gmem, k_smem), (v_gmem, v_smem))):
                pl.when(j >= settings.stages)(lambda i=i: plgpu.barrier_wait(free.at[i, slot]))
                plgpu.copy_gmem_to_smem(
                    source.at[kv_head, rows], buffer.at[slot], ready.at[i, slot]
                )

        @pl.loop(jnp.maximum(seen - settings.stages, 0), seen)
        def _leave(j: Any) -> None:  # the interpreter of JAX 0.11 wants every phase to be seen
            for i in range(2):
                plgpu.barrier_wait(free.at[i, jax.lax.rem(j, jnp.int32(settings.stages))])

    @pl.when(warpgroup < CONSUMERS)
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        start = tile * TILE + warpgroup * ROWS
        q = q_smem.at[warpgroup]
        plgpu.copy_gmem_to_smem(q_gmem.at[head, pl.ds(start, ROWS)], q, q_ready.at[warpgroup])
        plgpu.barrier_wait(q_ready.at[warpgroup])

        def slot_of(j: Any) -> Any:
            return jax.lax.rem(jnp.int32(j), jnp.int32(settings.stages))

        def pass_turn() -> None:
            plgpu.barrier_arrive(turn.at[1 - warpgroup])

        def issue_scores(scores: Any, j: Any) -> None:
            plgpu.wgmma(scores, q, k_smem.at[slot_of(j)].transpose((1, 0)))

        def issue_output(out: Any, weights: jax.Array | None, j: Any) -> None:
            plgpu.barrier_wait(ready.at[1, slot_of(j)])
            plgpu.wgmma(
                out,
                weights_smem.at[warpgroup] if weights is None else weights,
                v_smem.at[slot_of(j)],
            )

        def weigh(
            scores: Any, top: jax.Array, total: jax.Array, j: Any, *, after: int = 1
        ) -> Weights:
            s = plgpu.wgmma_accumulator_load(scores, wait_n=after)  # but not for those after it
            plgpu.barrier_arrive(free.at[0, slot_of(j)])
            if settings.masks(settings.block_kv):
                s = jax.lax.cond(
                    j >= whole,
                    lambda s: settings.hide(s, start, j * settings.block_kv),
                    lambda s: s,
                    s,
                )
            new = jnp.maximum(top, jnp.max(s, axis=1) * settings.to_log2)
            # A query that has seen nothing yet has the maximum -inf, and -inf - -inf is NaN.
            shift = (
                jnp.where(new == -jnp.inf, 0.0, new) if settings.masks(settings.block_kv) else new
            )
            p = jnp.exp2(s * settings.to_log2 - over_columns(shift, s.shape))
            rescale = jnp.exp2(top - shift)
            total = total * rescale + jnp.sum(p, axis=1)
            p, rescale, new, total = jax.lax.optimization_barrier((p, rescale, new, total))
            pl.when(j + 1 < seen)(lambda: plgpu.barrier_wait(ready.at[0, slot_of(j + 1)]))
            return p, rescale, new, total

        def rounded(p: jax.Array) -> jax.Array | None:
            # Not earlier: ptxas puts them where the product before reads its own.
            weights = jax.lax.optimization_barrier(p).astype(q_smem.dtype)
            if settings.in_registers:
                return weights
            weights_smem[warpgroup] = weights
            plgpu.commit_smem()
            return None

        scores_type = plgpu.WGMMAAccumulatorRef((ROWS, settings.block_kv), jnp.float32)
        out_type = plgpu.WGMMAAccumulatorRef((ROWS, q_smem.shape[-1]), jnp.float32)

        def step(j: Any, carry: Any) -> Any:
            out, weights, top, total = carry

            def turn_of(scores: Any, out: Any) -> Weights:
                plgpu.barrier_wait(turn.at[warpgroup])
                issue_scores(scores, j)
                issue_output(out, weights, j - 1)
                pass_turn()
                return weigh(scores, top, total, j)

            if settings.in_registers:

                def add_to_output(refs: Any) -> None:
                    out, *results = refs
                    new = pl.run_scoped(lambda scores: turn_of(scores, out), scores_type)
                    for ref, value in zip(results, new, strict=True):
                        ref[...] = value

                state: Any = pl.run_state(add_to_output)(
                    (
                        plgpu.WGMMAAccumulatorRef.init(out),
                        zeros(ROWS, settings.block_kv),
                        total,
                        top,
                        total,
                    )
                )
                out, p, rescale, top, total = state
            else:

                def multiply(scores: Any, more: Any) -> Any:
                    new = turn_of(scores, more)
                    return *new, plgpu.wgmma_accumulator_load(more)

                p, rescale, top, total, more = pl.run_scoped(multiply, scores_type, out_type)
                out += more
            plgpu.barrier_arrive(free.at[1, slot_of(j - 1)])
            return out * over_columns(rescale, out.shape), rounded(p), top, total

        def first(scores: Any) -> Any:
            plgpu.barrier_wait(turn.at[warpgroup])
            plgpu.barrier_wait(ready.at[0, 0])
            issue_scores(scores, 0)
            pass_turn()
            plgpu.wgmma_wait(0)
            return weigh(scores, of_rows(-jnp.inf), of_rows(0.0), 0)

        def last(out: Any) -> jax.Array:
            plgpu.barrier_wait(turn.at[warpgroup])
            issue_output(out, weights, seen - 1)
            pl.when(warpgroup == 0)(pass_turn)
            return out[...]

        def wide_step(j: Any, carry: Any) -> Any:
            """A block, one product after the other: there are no registers for two at a time."""
            out, top, total = carry

            def weights_of(scores: Any) -> Weights:
                plgpu.barrier_wait(turn.at[warpgroup])
                issue_scores(scores, j)
                pl.when(jnp.logical_or(warpgroup == 0, j + 1 < seen))(pass_turn)
                return weigh(scores, top, total, j, after=0)

            p, rescale, top, total = pl.run_scoped(weights_of, scores_type)
            out *= over_columns(rescale, out.shape)
            weights = rounded(p)
            if settings.in_registers:
                acc = plgpu.WGMMAAccumulatorRef.init(out)
                out = pl.run_state(lambda out: issue_output(out, weights, j))(acc)
            else:

                def product(acc: Any) -> jax.Array:
                    issue_output(acc, weights, j)
                    return acc[...]

                out += pl.run_scoped(product, out_type)
            plgpu.barrier_arrive(free.at[1, slot_of(j)])
            return out, top, total

        pl.when(warpgroup == 1)(pass_turn)
        if wide:
            plgpu.barrier_wait(ready.at[0, 0])
            carry = zeros(ROWS, q_smem.shape[-1]), of_rows(-jnp.inf), of_rows(0.0)
            out, top, total = jax.lax.fori_loop(0, seen, wide_step, carry)
        else:
            p, _, top, total = pl.run_scoped(first, scores_type)
            carry = (zeros(ROWS, q_smem.shape[-1]), rounded(p), top, total)
            out, weights, top, total = jax.lax.fori_loop(1, seen, step, carry)
            out += pl.run_scoped(last, out_type)
            plgpu.barrier_arrive(free.at[1, slot_of(seen - 1)])

        nothing = total == 0.0
        out *= over_columns(1.0 / jnp.where(nothing, 1.0, total), out.shape)
        q[...] = out.astype(q_smem.dtype)
        if log_sum_gmem is not None:
            log_sum = top + jnp.log(total) * 1.4426950408889634
            log_sum_smem[warpgroup] = jnp.where(nothing, jnp.inf, log_sum)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, o_gmem.at[head, pl.ds(start, ROWS)])
        if log_sum_gmem is not None:
            plgpu.copy_smem_to_gmem(
                log_sum_smem.at[warpgroup], log_sum_gmem.at[head, pl.ds(start, ROWS)]
            )
        plgpu.wait_smem_to_gmem(0)


def _call(
    q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings, *, save: bool
) -> tuple[jax.Array, jax.Array | None]:
    """The output and, if ``save``, each query's log2 of its sum of exp2, ``(h, q_len)``."""
    heads, q_len, d = q.shape
    pairs = (2, settings.stages)  # of K and V

    def kernel(q: Any, k: Any, v: Any, o: Any, *log_sum: Any, **scratch: Any) -> None:
        _attention_kernel(q, k, v, o, log_sum[0] if log_sum else None, settings=settings, **scratch)

    kernel.__name__ = "hopper_flash_attention"
    log_sums = jax.ShapeDtypeStruct((heads, q_len), jnp.float32)
    scratch: dict[str, Any] = {
        "q_smem": in_shared(CONSUMERS, ROWS, d, dtype=q.dtype),
        "k_smem": in_shared(settings.stages, settings.block_kv, d, dtype=q.dtype),
        "v_smem": in_shared(settings.stages, settings.block_kv, d, dtype=q.dtype),
        "weights_smem": None
        if settings.in_registers
        else in_shared(CONSUMERS, ROWS, settings.block_kv, dtype=q.dtype),
        "log_sum_smem": plgpu.SMEM((CONSUMERS, ROWS), jnp.float32),
        "q_ready": plgpu.Barrier(num_barriers=CONSUMERS),
        "ready": plgpu.Barrier(num_barriers=pairs),
        "free": plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=pairs),
        "turn": plgpu.Barrier(num_barriers=CONSUMERS),
    }
    o, *saved = plgpu.kernel(
        kernel,
        out_type=(jax.ShapeDtypeStruct(q.shape, q.dtype), *([log_sums] if save else [])),
        scratch_types=scratch,
        grid=(heads, q_len // TILE),
        grid_names=("head", "tile"),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        # No sum is over warps, so none needs memory to meet in: room for the third stage.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v)
    return o, saved[0] if saved else None


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
      stages: blocks of keys and of values in shared memory, at least 2; by default 3, or 2 for a
        ``d`` of 256.
      in_registers: let the tensor core take the weights from registers and add to the output there.
        Otherwise the weights go through shared memory, and the products are added by the threads:
        the GPU interpreter can do that, but it takes as many registers again for the output, and
        with blocks of more than 64 keys they do not suffice.

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
    stages = (2 if wide else 3) if stages is None else stages
    if wide and block_kv != 64:
        raise ValueError(f"block_kv must be 64 for a d of 256, but it is {block_kv}")
    if block_kv not in (64, 128):
        raise ValueError(f"block_kv must be 64 or 128, but it is {block_kv}")
    _require.positive(stages=stages)
    if stages == 1:
        raise ValueError("stages must be at least 2: with 1, the copies wait for each other")
    settings = Settings(q_len, kv_len, causal, factor, block_kv, stages, in_registers)
    o = _attend(
        *(
            padded(jnp.reshape(operand, (-1, *operand.shape[2:])), rows)
            for operand, rows in ((q, TILE), (k, TILE), (v, TILE))
        ),
        settings,
    )
    return o[:, :q_len].reshape(q.shape)
