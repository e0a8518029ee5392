"""A product with rows that are gathered on the way: ``o = x[idx] @ w``.

Shapes: ``x (rows, k)``, ``idx (m,)`` int32, ``w (k, n)``, ``o (m, n)``. Dtypes: float32 or
bfloat16, the same for ``x`` and ``w``.

``x[idx]`` is never written to HBM. The grid is ``(m, n)`` in blocks. In the first program of a
block of rows the core starts one DMA for each row of the *next* block, straight from HBM to a slot
of VMEM, then waits for its own rows, which were started a block earlier. So the rows of one block
travel while the products of another are computed. There are two slots, each with one semaphore: a
DMA semaphore counts bytes, so a single wait for the bytes of a whole slot waits for all its rows.

HBM holds two rows of a 16-bit array in one row of 32-bit words, and a DMA must start at such a row.
For bfloat16, each DMA fetches the pair that its row belongs to. Seen as 32-bit words, the even row
is their low halves and the odd one their high halves, so a shift by 0 or 16 bits picks the row.

The contraction is not divided: a row arrives whole, so all of ``k`` is in VMEM anyway.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, ROWS, fit, precision_for

_SLOTS = 2

#: ``block_m`` is a multiple of it: two tiles, because XLA for CPUs turns the picks of a single one
#: into a transposed bfloat16 product, which it then cannot run (JAX 0.12.0.1).
_MULTIPLE = 2 * ROWS


def _gather_matmul_kernel(
    idx_ref: Any,
    x_ref: Any,
    w_ref: Any,
    o_ref: Any,
    slots: Any,
    halves: Any,
    rows_ref: Any,
    arrived: Any,
    *,
    packed: int,
) -> None:
    """``packed`` rows share a row of words: 1 for 32-bit dtypes, 2 for 16-bit ones."""
    block, column = pl.program_id(0), pl.program_id(1)
    count = rows_ref.shape[0]
    slot = jax.lax.rem(block, _SLOTS)

    def fetch(block: Any) -> None:
        into = jax.lax.rem(block, _SLOTS)

        @pl.loop(0, count, unroll=4)  # to start a DMA is scalar work, which overlaps like this
        def _row(row: Any) -> None:
            index = idx_ref[block * count + row]
            half = jax.lax.rem(index, packed)
            pltpu.async_copy(
                x_ref.at[pl.dslice(pl.multiple_of(index - half, packed), packed)],
                slots.at[into, pl.dslice(pl.multiple_of(row * packed, packed), packed)],
                arrived.at[into],
            )
            if packed > 1:
                halves[into, pl.dslice(row, 1)] = jnp.full((1, LANES), half, jnp.uint32)

    @pl.when(column == 0)
    def _next_rows() -> None:
        pl.when(block == 0)(lambda: fetch(block))
        pl.when(block + 1 < pl.num_programs(0))(lambda: fetch(block + 1))
        # Copies nothing: it waits for as many bytes as a slot has.
        pltpu.make_async_copy(slots.at[slot], slots.at[slot], arrived.at[slot]).wait()
        if packed == 1:
            rows_ref[...] = slots[slot]
            return

        @pl.loop(0, count // ROWS)
        def _pick(tile: Any) -> None:
            here = pl.dslice(pl.multiple_of(tile * ROWS, ROWS), ROWS)
            pairs = pl.dslice(pl.multiple_of(tile * 2 * ROWS, 2 * ROWS), 2 * ROWS)
            words = pltpu.bitcast(slots[slot, pairs], jnp.uint32)
            half = (words >> (16 * halves[slot, here, :1])).astype(jnp.uint16)
            rows_ref[here] = jax.lax.bitcast_convert_type(half, rows_ref.dtype)

    o_ref[...] = jnp.dot(
        rows_ref[...],
        w_ref[...],
        precision=precision_for(w_ref.dtype),
        preferred_element_type=jnp.float32,
    ).astype(o_ref.dtype)


def fused_gather(
    x: jax.Array,
    idx: jax.Array,
    w: jax.Array,
    *,
    block_m: int = 256,
    block_n: int = 256,
) -> jax.Array:
    """``x[idx] @ w`` without ``x[idx]`` in HBM.

    Args:
      x: ``(rows, k)``, float32 or bfloat16. An odd number of bfloat16 rows is padded to an even
        one, which copies ``x``: keep large tables even.
      idx: ``(m,)`` int32, in any order, with repetitions. An index that is out of range is moved to
        the nearest row. They are held in scalar memory, which has room for 100,000 or more.
      w: ``(k, n)``, of the dtype of ``x``.
      block_m: rows of a block, which are gathered together, rounded up to a multiple of 32.
      block_n: columns of a block of the output. VMEM holds two slots of ``block_m`` rows (twice
        that for bfloat16), the rows of one block, and two blocks of ``w (k, block_n)``: with the
        default blocks 9 MiB for bfloat16 and ``k = 2048``, so a larger ``k`` needs smaller ones.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    rows, k = _require.axes("x", x, "rows k")
    (m,) = _require.axes("idx", idx, "m")
    w_k, n = _require.axes("w", w, "k n")
    _require.same_size("k", ("x", k), ("w", w_k))
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be float32 or bfloat16, but its dtype is {x.dtype}")
    _require.same_dtype(x=x, w=w)
    if idx.dtype != jnp.int32:
        raise ValueError(f"idx must be int32, but its dtype is {idx.dtype}")
    _require.positive(block_m=block_m, block_n=block_n)

    packed = 4 // x.dtype.itemsize
    block_m, block_n = pl.align_to(min(block_m, m), _MULTIPLE), fit(block_n, n, LANES)
    blocks = pl.cdiv(m, block_m)
    idx = jnp.pad(jnp.clip(idx, 0, rows - 1), (0, blocks * block_m - m))
    x = jnp.pad(x, ((0, -rows % packed), (0, 0)))
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(blocks, pl.cdiv(n, block_n)),
        in_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((k, block_n), lambda i, j, idx: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, idx: (i, j)),
        scratch_shapes=[
            pltpu.VMEM((_SLOTS, packed * block_m, k), x.dtype),
            pltpu.VMEM((_SLOTS, block_m, LANES), jnp.uint32),
            pltpu.VMEM((block_m, k), x.dtype),
            pltpu.SemaphoreType.DMA((_SLOTS,)),
        ],
    )
    return pl.pallas_call(
        functools.partial(_gather_matmul_kernel, packed=packed),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid_spec=grid_spec,
        compiler_params=pltpu.CompilerParams(
            # Neither may be divided over cores: a block's rows are started in the block before it.
            dimension_semantics=("arbitrary", "arbitrary"),
            disable_bounds_checks=True,  # of every DMA; the indices are in range, see above
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * m * k * n,
            transcendentals=0,
            bytes_accessed=(packed * m * k + k * n + m * n) * x.dtype.itemsize + idx.size * 4,
        ),
    )(idx, x, w)


def reference(x: jax.Array, idx: jax.Array, w: jax.Array) -> jax.Array:
    """``x[idx] @ w``, accumulated in float32 at least and rounded once."""
    rows = jnp.take(x, idx, axis=0, mode="clip")
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = jnp.dot(rows, w, precision=precision_for(x.dtype), preferred_element_type=wide)
    return product.astype(x.dtype)
