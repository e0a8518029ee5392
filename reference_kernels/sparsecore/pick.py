"""Draws from discrete distributions: the first place where a running sum exceeds a threshold.

``o[r] = min {j : weights[r, 0] + ... + weights[r, j] > draws[r]}``, or ``n`` if there is none.

Shapes: ``weights (rows, n)``, ``draws (rows,)``, ``o (rows,)``. Dtype: int32 for all, so sums are
exact. If ``draws[r]`` is uniform in ``[0, sum(weights[r]))``, then ``o[r]`` is ``j`` with a
probability proportional to ``weights[r, j]``: inversion of the distribution function.

A row goes through a register at a time. ``plsc.cumsum`` adds up the lanes of one, the total of
those before is added to all of them, and ``plsc.all_reduce_ffs`` gives the first lane whose sum
exceeds the threshold, or the number of lanes, in every lane.

A vector subcore neither loads a scalar from its memory nor stores one. A gather with the same index
in every lane brings ``draws[r]`` to all lanes, and a scatter with a mask of one lane stores
``o[r]``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores


def _pick_rows(weights_ref: Any, draws_ref: Any, o_ref: Any, *, n: int, lanes: int) -> None:
    first_lane = jax.lax.iota(jnp.int32, lanes) == 0

    @pl.loop(0, weights_ref.shape[0])
    def _row(r: Any) -> None:
        row = jnp.full((lanes,), r)
        threshold = plsc.load_gather(draws_ref, [row])

        def register(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            total, found = state
            sums = plsc.cumsum(weights_ref[r, _subcores.part(i, lanes)]) + total
            lane = plsc.all_reduce_ffs(sums > threshold)
            here = jnp.where(lane < lanes, i * lanes + lane, n)
            return jnp.full((lanes,), sums[lanes - 1]), jnp.minimum(found, here)

        start = jnp.zeros((lanes,), jnp.int32), jnp.full((lanes,), n)
        _, found = jax.lax.fori_loop(0, weights_ref.shape[1] // lanes, register, start)
        plsc.store_scatter(o_ref, [row], found, mask=first_lane)


def pick(
    weights: jax.Array,
    draws: jax.Array,
    *,
    block: int = 16,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """The first place of each row where the running sum of ``weights`` exceeds ``draws``.

    Args:
      weights: ``(rows, n)`` int32, not negative, and their sum a row below ``2**31``. It is padded
        to whole blocks of rows and whole registers.
      draws: ``(rows,)`` int32, not negative. Others find the first place.
      block: rows of a block, rounded up to a multiple of 8; two blocks must fit in the memory of a
        subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(rows,)`` int32, from 0 to ``n``; ``n`` where no sum exceeds the draw.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    rows, n = _require.axes("weights", weights, "rows n")
    (count,) = _require.axes("draws", draws, "rows")
    _require.same_size("rows", ("weights", rows), ("draws", count))
    _subcores.require_indices("weights", weights)
    _subcores.require_indices("draws", draws)
    _require.positive(block=block)
    lanes = _subcores.lanes()
    block = pl.align_to(min(block, rows), _subcores.granule(jnp.int32))
    wide = _subcores.padded(weights, block, lanes)
    body = functools.partial(_pick_rows, n=n, lanes=lanes)

    def kernel(*refs: Any) -> None:
        _subcores.by_blocks(body, refs, [(block, wide.shape[1]), (block,), (block,)])

    out = pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(wide.shape[:1], jnp.int32),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(wide, _subcores.padded(draws, block))
    return out[:rows]


def reference(weights: jax.Array, draws: jax.Array) -> jax.Array:
    """The number of running sums that do not exceed the draw."""
    sums = jnp.cumsum(weights, axis=1)
    return jnp.sum(sums <= draws[:, None], axis=1, dtype=jnp.int32)
