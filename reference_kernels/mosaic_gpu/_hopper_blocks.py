"""Tiles of queries and blocks of keys for the attention of a Hopper GPU: which of them meet."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

#: Rows that a warpgroup multiplies at a time: ``wgmma`` has m64 in its name.
ROWS = 64

#: Warpgroups that compute; one more copies.
CONSUMERS = 2

#: Queries of a tile.
TILE = ROWS * CONSUMERS

#: Registers of a thread that computes, and of one that copies. A block of three warpgroups is
#: launched with 168 a thread, all that an SM has; what one role gives back, the other may take.
COMPUTE_REGISTERS, COPY_REGISTERS = 240, 24


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the kernels need besides arrays.

    Attributes:
      q_len: queries, without padding.
      kv_len: keys, without padding.
      causal: whether query ``i`` sees only the keys up to ``i + kv_len - q_len``.
      scale: factor of the scores.
      block_kv: keys of a block.
      stages: blocks of keys in shared memory.
      in_registers: whether the tensor core takes weights and running sums from registers.
      deterministic: whether gradients are the same in every run.
    """

    q_len: int
    kv_len: int
    causal: bool
    scale: float
    block_kv: int
    stages: int
    in_registers: bool
    deterministic: bool = False

    @property
    def to_log2(self) -> float:
        """Factor of the scores before ``exp2``."""
        return self.scale * math.log2(math.e)

    @property
    def offset(self) -> int:
        """Query ``i`` sees the keys up to ``i + offset``, if causal."""
        return self.kv_len - self.q_len

    def masks(self, block: int) -> bool:
        """Whether there are blocks in which a query does not see all keys."""
        return self.causal or bool(self.kv_len % block)

    def seen(self, tile: Any, block: int) -> Any:
        """Blocks of keys that queries of ``tile`` see; one at least, to keep the code simple."""
        if not self.causal:
            return -(-self.kv_len // block)
        keys = _between(1, (tile + 1) * TILE + self.offset, self.kv_len)
        return jax.lax.div(keys + (block - 1), jnp.int32(block))

    def whole(self, tile: Any, block: int) -> Any:
        """Of these, from the first one on, those that need no mask."""
        if not self.causal:
            return self.kv_len // block
        keys = _between(0, tile * TILE + 1 + self.offset, self.kv_len)
        return jax.lax.div(keys, jnp.int32(block))

    def first_query(self, tile: Any) -> Any:
        """The first query that sees a key of ``tile``, if causal; there is one."""
        return _between(0, tile * TILE - self.offset, self.q_len - 1)

    def hide(self, scores: jax.Array, query: Any, key: Any, *, keys: int = 1) -> jax.Array:
        """``-inf`` instead of the scores of pairs that do not see each other.

        Args:
          scores: of some queries and keys, in the layout of an accumulator.
          query: the first of these queries.
          key: the first of these keys.
          keys: the axis of the keys.
        """
        iota = functools.partial(
            plgpu.broadcasted_iota, jnp.int32, scores.shape, layout=plgpu.Layout.WGMMA
        )
        if self.causal:  # which hides what is beyond the last key from every real query
            visible = iota(keys) - iota(1 - keys) <= query - key + self.offset
        else:
            visible = iota(keys) < self.kv_len - key
        return jnp.where(visible, scores, -jnp.inf)


def _between(low: int, value: Any, high: int) -> Any:
    return jnp.minimum(jnp.maximum(value, low), high)


def roles(warpgroup: jax.Array, copy: Callable[[], None], compute: Callable[[], None]) -> None:
    """Let the last warpgroup of a block copy, and the others compute with its registers."""

    @pl.when(warpgroup == CONSUMERS)
    def _copy() -> None:
        plgpu.set_max_registers(COPY_REGISTERS, action="decrease")
        copy()

    @pl.when(warpgroup < CONSUMERS)
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        compute()


def in_shared(*shape: int, dtype: Any) -> Any:
    """Shared memory in the layout that ``wgmma`` reads: 8 rows of 128 bytes, swizzled."""
    layout: Any = plgpu  # its transforms are abstract to type checkers
    transforms = (layout.TilingTransform((8, 64)), layout.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def over_columns(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A number for each row, over ``shape``."""
    return jax.lax.broadcast_in_dim(values, shape, (0,))


def over_rows(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A number for each column, over ``shape``."""
    return jax.lax.broadcast_in_dim(values, shape, (1,))


def zeros(*shape: int) -> jax.Array:
    """Zeros of float32, as an accumulator has them."""
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)


def of_rows(value: float) -> jax.Array:
    """A number for each row of an accumulator."""
    return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))


def padded(x: jax.Array, rows: int) -> jax.Array:
    """``x (h, n, d)`` with rows of zeros at the end, up to a multiple of ``rows``."""
    extra = -x.shape[1] % rows
    return jnp.pad(x, ((0, 0), (0, extra), (0, 0))) if extra else x
