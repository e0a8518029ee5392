"""Rows looked up by SparseCores and multiplied by the TensorCore: ``o = x[idx] @ w``.

Shapes: ``x (rows, k)``, ``idx (m,)`` int32, ``w (k, n)``, ``o (m, n)``. Dtype: float32 for all but
``idx``.

Each unit does what it is for, and the rows pass from one to the other through HBM: they share no
other memory. Two ways to hand them over:

``lookup_matmul``: two kernels, the second of which starts when the first has ended. The work is cut
into parts that do not depend on each other, and XLA calls kernels of SparseCores asynchronously
(``call-start``), so it could look up one part while it multiplies another. For a v6e it does not:
the program that libtpu 0.0.50.1 makes of the typical call has all lookups before the first product.

``hand_off``: one kernel with two bodies. A subcore that has stored a block of rows signals the
semaphore of that block, which belongs to the TensorCore, and the TensorCore, which waits for the
blocks in order, multiplies it. So what is handed over is a block, and no kernel has to end for it.
JAX 0.12.0.1 cannot compile this (``mpmd_map does not support TC kernels yet``); the TPU interpreter
runs it. The rows in HBM are in the tiles of a TensorCore, so ``k`` is padded to whole tiles.
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
from reference_kernels.matmul.matmul import matmul
from reference_kernels.sparsecore import _subcores
from reference_kernels.sparsecore.gather import gather

_TENSOR_CORE = "tensor_core"


def lookup_matmul(
    x: jax.Array,
    idx: jax.Array,
    w: jax.Array,
    *,
    parts: int = 4,
    chunk: int = 64,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``x[idx] @ w``, by a kernel for the lookup and one for the product, part by part.

    Args:
      x: ``(rows, k)`` float32.
      idx: ``(m,)`` int32. An index that is out of range is moved to the nearest row.
      w: ``(k, n)`` float32.
      parts: how many pieces ``idx`` is cut into, of equal size but for the last.
      chunk: rows that one copy of the lookup fetches; two chunks must fit in the memory of a
        subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(m, n)`` float32.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    m = _checked(x, idx, w)
    _require.positive(parts=parts)
    size = pl.cdiv(m, min(parts, m))
    sizes = {"chunk": chunk, "cores": cores, "subcores": subcores}
    lists = [idx[start : start + size] for start in range(0, m, size)]
    return jnp.concatenate([matmul(gather(x, part, **sizes), w) for part in lists])


def _look_up(
    x_ref: Any,
    idx_ref: Any,
    w_ref: Any,
    o_ref: Any,
    rows_ref: Any,
    ready: Any,
    lists: Any,
    rows: Any,
    arrived: Any,
    *_: Any,
    subcores: int,
) -> None:
    """The body of each vector subcore."""
    del w_ref, o_ref
    block = rows.shape[0]

    @pl.loop(jax.lax.axis_index(_subcores.SUBCORE), idx_ref.shape[0] // block, step=subcores)
    def _block(i: Any) -> None:
        here = _subcores.part(i, block)
        pltpu.sync_copy(idx_ref.at[here], lists)
        pltpu.async_copy(x_ref.at[lists], rows, arrived).wait()
        pltpu.sync_copy(rows, rows_ref.at[here])
        pl.semaphore_signal(ready.at[i], 1, device_id={_TENSOR_CORE: 0})


def _multiply(
    x_ref: Any, idx_ref: Any, w_ref: Any, o_ref: Any, rows_ref: Any, ready: Any, *scratch: Any
) -> None:
    """The body of the TensorCore."""
    del x_ref, idx_ref
    rows, weights, product = scratch[3:]
    block = rows.shape[0]
    pltpu.sync_copy(w_ref, weights)

    @pl.loop(0, o_ref.shape[0] // block)
    def _block(i: Any) -> None:
        pl.semaphore_wait(ready.at[i], 1)
        pltpu.sync_copy(rows_ref.at[_subcores.part(i, block)], rows)
        product[...] = jnp.dot(
            rows[...],
            weights[...],
            precision=precision_for(rows.dtype),
            preferred_element_type=jnp.float32,
        )
        pltpu.sync_copy(product, o_ref.at[_subcores.part(i, block)])


def hand_off(
    x: jax.Array,
    idx: jax.Array,
    w: jax.Array,
    *,
    block: int = 128,
    subcores: int | None = None,
) -> jax.Array:
    """``x[idx] @ w``, by one kernel with a body for each kind of core.

    Args:
      x: ``(rows, k)`` float32. It is padded to whole tiles.
      idx: ``(m,)`` int32. An index that is out of range is moved to the nearest row.
      w: ``(k, n)`` float32. All of it must fit in VMEM.
      block: rows that are handed over at a time, rounded up to a multiple of 8.
      subcores: vector subcores of one SparseCore; by default all.

    Returns:
      ``(m, n)`` float32.

    Raises:
      ValueError: as for ``lookup_matmul``.
    """
    m = _checked(x, idx, w)
    _require.positive(block=block)
    block = pl.align_to(min(block, m), _subcores.granule(jnp.int32))
    n = w.shape[1]
    table = _subcores.padded(x, 1, LANES)
    lists = _subcores.padded(jnp.clip(idx, 0, x.shape[0] - 1), block)
    weights = _subcores.padded(w, LANES, LANES)
    k, wide = weights.shape

    vectors = _subcores.vector_mesh(1, subcores)
    tensor = pltpu.TensorCoreMesh(axis_name=_TENSOR_CORE, num_cores=1)
    kernel = pl.kernel(
        body=[functools.partial(_look_up, subcores=vectors.num_subcores), _multiply],
        mesh=[vectors, tensor],
        out_type=(
            pltpu.HBM((lists.size, wide), x.dtype),
            pltpu.HBM((lists.size, k), x.dtype),  # the rows on their way
        ),
        scratch_types=[
            pltpu.SemaphoreType.REGULAR((lists.size // block,)) @ tensor,
            pltpu.VMEM((block,), jnp.int32) @ vectors,
            pltpu.VMEM((block, k), x.dtype) @ vectors,
            pltpu.SemaphoreType.DMA @ vectors,
            pltpu.VMEM((block, k), x.dtype) @ tensor,
            pltpu.VMEM((k, wide), x.dtype) @ tensor,
            pltpu.VMEM((block, wide), x.dtype) @ tensor,
        ],
    )

    @jax.jit  # outside of it, an array has no memory space
    def run(*operands: jax.Array) -> jax.Array:
        # The meshes do not agree on where an operand is if nobody says it.
        out, _ = kernel(*(pltpu.with_memory_space_constraint(e, pltpu.HBM) for e in operands))
        return out

    return run(table, lists, weights)[:m, :n]


def _checked(x: Any, idx: Any, w: Any) -> int:
    """The number of rows of the result."""
    _, k = _require.axes("x", x, "rows k")
    (m,) = _require.axes("idx", idx, "m")
    other, _ = _require.axes("w", w, "k n")
    _require.same_size("k", ("x", k), ("w", other))
    _subcores.require_indices("idx", idx)
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be float32, but its dtype is {x.dtype}")
    _require.same_dtype(x=x, w=w)
    return m


def reference(x: jax.Array, idx: jax.Array, w: jax.Array) -> jax.Array:
    """``x[idx] @ w``."""
    rows = jnp.take(x, idx, axis=0, mode="clip")
    return jnp.dot(rows, w, precision=precision_for(x.dtype))
