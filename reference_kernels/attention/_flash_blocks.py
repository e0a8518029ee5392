"""What the kernels of flash attention share: blocks, what is visible in them, and layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels._tpu import LANES

#: Rows that a loop over the rows of a block takes at a time.
SLAB = 64

#: Segment ids of the rows of a block, ``(rows, LANES)``, and of its columns, ``(1, columns)``.
Ids = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Blocks:
    """A matrix of scores, ``(q_len, kv_len)``, cut into blocks, and what of it is visible.

    Attributes:
      q_len: number of queries.
      kv_len: number of keys.
      block_q: queries in a block.
      block_kv: keys in a block.
      causal: whether query ``i`` sees only the keys up to ``i + kv_len - q_len``.
    """

    q_len: int
    kv_len: int
    block_q: int
    block_kv: int
    causal: bool

    @property
    def grid(self) -> tuple[int, int]:
        """How many blocks of queries and of keys there are."""
        return pl.cdiv(self.q_len, self.block_q), pl.cdiv(self.kv_len, self.block_kv)

    @property
    def diagonal(self) -> int:
        """The last key that query 0 sees, if ``causal``."""
        return self.kv_len - self.q_len

    def seen(self, i: Any, j: Any) -> Any:
        """Whether a query of block ``i`` sees a key of block ``j``."""
        if not self.causal:
            return True
        return j * self.block_kv <= (i + 1) * self.block_q - 1 + self.diagonal

    def whole(self, i: Any, j: Any, *, keys: int = 1) -> Any:
        """Whether every query of block ``i`` sees every key of ``j``, and no column is beyond.

        The keys are along axis ``keys`` of the scores. Rows past the end do no harm.
        """
        answer: Any = True
        if self.causal:
            answer = (j + 1) * self.block_kv - 1 <= i * self.block_q + self.diagonal
        if keys == 1 and self.kv_len % self.block_kv:
            answer &= (j + 1) * self.block_kv <= self.kv_len
        if keys == 0 and self.q_len % self.block_q:
            answer &= (i + 1) * self.block_q <= self.q_len
        return answer

    def last_kv(self, i: Any, j: Any) -> Any:
        """Block ``j`` of keys, or the last one that block ``i`` of queries sees.

        Nothing is copied for a block that an index map names twice in a row.
        """
        if not self.causal:
            return j
        last_key = jnp.maximum((i + 1) * self.block_q - 1 + self.diagonal, 0)
        return jnp.minimum(j, last_key // self.block_kv)

    def first_q(self, i: Any, j: Any) -> Any:
        """Block ``i`` of queries, or the first one that sees block ``j`` of keys."""
        if not self.causal:
            return i
        first_query = jnp.maximum(j * self.block_kv - self.diagonal, 0)
        return jnp.maximum(i, first_query // self.block_q)

    def hide(
        self, scores: jax.Array, i: Any, j: Any, ids: Ids | None, *, keys: int, edges: bool
    ) -> jax.Array:
        """``scores`` of block ``i`` by ``j`` with -inf where the query does not see the key.

        The keys are along axis ``keys`` of the scores, the queries along the other one. Past the
        end, only columns are hidden. Without ``edges``, only segment ids can hide anything.
        """
        key = jax.lax.broadcasted_iota(jnp.int32, scores.shape, keys)
        query = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1 - keys)
        visible: Any = True
        if edges and keys == 1 and self.kv_len % self.block_kv:
            visible = key < self.kv_len - j * self.block_kv
        if edges and self.causal:
            visible &= key - query <= i * self.block_q + self.diagonal - j * self.block_kv
        if ids is not None:
            visible &= across(ids[0], scores.shape[1]) == ids[1]
        return scores if visible is True else jnp.where(visible, scores, -jnp.inf)


def run_block(whole: Any, seen: Any, body: Callable[[bool], None]) -> None:
    """``body(edges)``: False where the block is ``whole``; not called where it is not ``seen``.

    What is known while tracing costs no code.
    """
    if whole is not True:
        pl.when(jnp.logical_and(seen, jnp.logical_not(whole)))(lambda: body(True))
    if whole is not False:
        pl.when(whole)(lambda: body(False))


def each_slab(rows: int) -> Callable[[Callable[[Any], None]], None]:
    """Calls the decorated function with one slice of ``rows`` after the other.

    What is done once for many blocks is a loop, so that its code is short.
    """
    slab = rows if rows % SLAB else SLAB

    def run(body: Callable[[Any], None]) -> None:
        @pl.loop(0, rows, step=slab)
        def _step(start: Any) -> None:
            body(pl.ds(pl.multiple_of(start, slab), slab))

    return run


def across(x: jax.Array, columns: int) -> jax.Array:
    """``x``, whose lanes are equal, with ``columns`` of them."""
    return jnp.tile(x, (1, pl.cdiv(columns, LANES)))[:, :columns]


def lane_sums(x: jax.Array) -> jax.Array:
    """``(rows, LANES)`` whose lanes add up to the rows of ``x``: sums within lanes cost least."""
    rows, columns = x.shape
    if columns % LANES:
        lane = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)
        return jnp.where(lane == 0, jnp.sum(x, axis=1, keepdims=True), 0.0)
    total = x[:, :LANES]
    for start in range(LANES, columns, LANES):
        total += x[:, start : start + LANES]
    return total


def first_rows(count: Any, x: jax.Array) -> jax.Array:
    """``x`` with zeros after the first ``count`` rows, because zero times NaN is NaN."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) < count
    return jnp.where(inside, x.astype(jnp.float32), 0.0).astype(x.dtype)


def as_columns(x: jax.Array) -> jax.Array:
    """``(n, length)`` as ``(n, length, LANES)``: a number a row of a block, in every lane."""
    return jnp.broadcast_to(x[..., None], (*x.shape, LANES))


def as_rows(x: jax.Array, block: int, fill: float = 0) -> jax.Array:
    """``(n, length)`` as ``(n, blocks, 1, block)``: a row for each block, of whatever size."""
    n, length = x.shape
    padding = -length % block
    return jnp.pad(x, ((0, 0), (0, padding)), constant_values=fill).reshape(n, -1, 1, block)
