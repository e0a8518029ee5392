"""What the kernels of splash attention do with one block: load it, score it, hide keys."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES
from reference_kernels.attention._splash_mask import EMPTY, PARTIAL, ArrayMask, Mask, Plan

#: ``exp(x)`` is ``2 ** (LOG2_E x)``, and a power of two is what the hardware has.
LOG2_E = math.log2(math.e)

#: The score of a query that has seen nothing: below all others, and not infinite.
LOWEST = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is fixed of a call of splash attention.

    Attributes:
      mask: a rule or an array.
      q_len: number of queries.
      kv_len: number of keys.
      group: how many heads of queries share one of keys.
      scale: factor of the scores.
      soft_cap: scores are ``soft_cap * tanh(score / soft_cap)``; None leaves them as they are.
      block_q: queries in a block.
      block_kv: keys in a block.
    """

    mask: Mask | ArrayMask
    q_len: int
    kv_len: int
    group: int
    scale: float
    soft_cap: float | None
    block_q: int
    block_kv: int


class Visits(NamedTuple):
    """The lists of a ``Plan`` in SMEM, one entry for each step of the grid.

    Attributes:
      row: number of the row of blocks.
      column: number of its column.
      flags: see ``Plan``.
      member: which of the heads that share keys, where a row is a block of keys; else None.
    """

    row: Ref
    column: Ref
    flags: Ref
    member: Ref | None


class Saved(NamedTuple):
    """What the backward kernels know of a block of queries.

    Attributes:
      do: gradient of the output, ``(block_q, d_v)``.
      lse: logarithm to base 2 of each query's sum of weights, ``(1, block_q)``.
      di: sum of each query's ``o do``, ``(1, block_q)``.
    """

    do: Ref
    lse: Ref
    di: Ref


class Inputs(NamedTuple):
    """Blocks that a visit reads.

    Attributes:
      q: ``(block_q, d)``.
      k: ``(block_kv, d)``.
      v: ``(block_kv, d_v)``.
      saved: what the forward kernel has found out about the queries; None in that one.
      q_ids: segments of the queries, or None: ``(block_q, LANES)`` along the rows of the scores, or
        ``(1, block_q)`` along their columns.
      kv_ids: segments of the keys, likewise.
      mask: the block of a mask that is an array, laid out as the scores; or None.
    """

    q: Ref
    k: Ref
    v: Ref
    saved: Saved | None
    q_ids: Ref | None
    kv_ids: Ref | None
    mask: Ref | None


def exponents(products: jax.Array, problem: Problem) -> jax.Array:
    """Scaled and capped scores times ``LOG2_E``, of products of queries and keys."""
    if problem.soft_cap is None:
        return products * (problem.scale * LOG2_E)
    return (problem.soft_cap * LOG2_E) * jnp.tanh(products * (problem.scale / problem.soft_cap))


def hide(
    scores: jax.Array,
    inputs: Inputs,
    problem: Problem,
    *,
    key_axis: int,
    start: tuple[Any, Any],
    partial: bool,
) -> jax.Array:
    """``scores`` with -inf where the query does not see the key.

    Args:
      scores: one block.
      inputs: segments and mask of the block.
      problem: whose mask is meant.
      key_axis: the axis of ``scores`` along which the keys are.
      start: numbers of the first query and the first key of the block.
      partial: whether the mask hides anything in it.
    """
    same_segment = None
    if inputs.q_ids is not None and inputs.kv_ids is not None:
        q_ids, kv_ids = inputs.q_ids[...], inputs.kv_ids[...]
        if key_axis == 1:
            same_segment = widen(q_ids, scores.shape[1]) == kv_ids
        else:
            same_segment = q_ids == widen(kv_ids, scores.shape[1])
    seen: list[jax.Array] = []
    if partial and inputs.mask is not None:
        seen.append(inputs.mask[...].astype(jnp.int32) != 0)
    elif partial:
        assert isinstance(problem.mask, Mask)
        row, column = (
            jax.lax.broadcasted_iota(jnp.int32, _alone(scores.shape, axis), axis)
            for axis in (1 - key_axis, key_axis)
        )
        lengths = (problem.q_len, problem.kv_len, problem.block_kv)
        first, last = problem.mask.interval(start[0], row, *lengths)
        width = problem.mask.width(problem.kv_len, problem.block_kv)
        seen.append(_in_interval(start[1] + column, first, last, width))
    if same_segment is not None:
        seen.append(same_segment)
    return jnp.where(functools.reduce(jnp.logical_and, seen), scores, -jnp.inf) if seen else scores


def _alone(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """``shape`` with all sizes 1 but that of ``axis``."""
    return tuple(size if place == axis else 1 for place, size in enumerate(shape))


def _in_interval(key: jax.Array, first: Any, last: Any, width: int | None) -> jax.Array:
    """Whether ``first <= key <= last``, where None is no limit; ``width`` keys if that is known."""
    if first is None:
        return key <= last
    if last is None:
        return key >= first
    # One comparison for both ends: what lies before the first wraps around to a large number.
    size = jnp.maximum(last - first + 1, 0).astype(jnp.uint32) if width is None else width
    return (key - first).astype(jnp.uint32) < size


def inside(ref: Ref, start: Any, length: int) -> jax.Array:
    """A block of rows, with zeros for what lies beyond ``length``."""
    x = ref[...]
    if length % x.shape[0] == 0:
        return x
    row = start + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where(row < length, x, 0)


def widen(column: jax.Array, width: int) -> jax.Array:
    """``width`` lanes of ``column``, whose lanes are all equal."""
    return jnp.tile(column, (1, pl.cdiv(width, LANES)))[:, :width]


def for_each_kind(schedule: Plan, flags: jax.Array, body: Callable[[bool], None]) -> None:
    """Run ``body(partial)`` for what the visit leaves; only the versions that some visit needs.

    What an empty visit adds up is of no use to anybody: zeros are written for its row.
    """
    kinds = [
        kind for kind, there in ((PARTIAL, schedule.has(PARTIAL)), (0, schedule.has_full)) if there
    ]
    if len(kinds) == 1:
        body(kinds[0] == PARTIAL)
        return
    for kind in kinds:
        pl.when(flags & (PARTIAL | EMPTY) == kind)(functools.partial(body, kind == PARTIAL))


def clear_unseen(schedule: Plan, visits: Visits, step: jax.Array, *outputs: Ref) -> None:
    """Write zeros for a row of blocks of which nothing is seen."""
    flags = visits.flags
    if schedule.has(EMPTY):

        @pl.when(flags[step] & EMPTY != 0)
        def _nothing() -> None:
            for each in outputs:
                each[...] = jnp.zeros_like(each)
