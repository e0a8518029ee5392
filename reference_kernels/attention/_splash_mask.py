"""Which blocks of scores a mask leaves something of, and in which order they are visited.

Everything here is numpy on the host: the plan of a kernel is ready before it is traced. A mask is
either a rule, ``Mask``, by which every query sees one interval of keys, or an ``ArrayMask``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

#: Bits of ``Plan.flags``; what is above them is the number of the mask's block.
FIRST, LAST, PARTIAL, EMPTY = 1, 2, 4, 8
MASK_SHIFT = 4


@dataclasses.dataclass(frozen=True)
class Mask:
    """What a query at position ``p`` sees: keys from ``p - left`` to ``p + right`` of its chunk.

    ``Mask()`` hides nothing, ``Mask(right=0)`` is causal, ``Mask(left=1023, right=0)`` a causal
    window of 1024 keys, and ``Mask(right=0, chunk=8192)`` causal inside of chunks.

    Attributes:
      left: how many keys before its own position; None for all of them.
      right: how many after it; None for all of them.
      chunk: only keys in the same chunk of so many; None for one chunk.
      offset: position of the first query among the keys. None is ``kv_len - q_len``, so that the
        last query stands at the last key.
    """

    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("left", 0), ("right", 0), ("chunk", 1)):
            size = getattr(self, name)
            whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
            if size is not None and (not whole or size < least):
                raise ValueError(
                    f"{name} of a Mask must be None or an integer not below {least}, "
                    f"but it is {size!r}"
                )

    def interval(
        self, start: Any, row: Any, q_len: int, kv_len: int, block_kv: int
    ) -> tuple[Any, Any]:
        """The first and the last key that the queries ``start + row`` see; None is no limit.

        There is a limit at the end of the keys only if it lies inside a block of ``block_kv``.
        ``row`` is an array of numpy or a value in a kernel, ``start`` a scalar.
        """
        xp = np if isinstance(row, np.ndarray) else jnp
        start = start + (kv_len - q_len if self.offset is None else self.offset)
        first = None if self.left is None else row + (start - self.left)
        last = None if self.right is None else row + (start + self.right)
        if kv_len % block_kv:
            last = kv_len - 1 if last is None else xp.minimum(last, kv_len - 1)
        if self.chunk is not None:
            begin = (row + start) // self.chunk * self.chunk
            end = begin + (self.chunk - 1)
            first = begin if first is None else xp.maximum(first, begin)
            last = end if last is None else xp.minimum(last, end)
        return first, last

    def width(self, kv_len: int, block_kv: int) -> int | None:
        """How many keys lie in every interval, where that is the same for all queries."""
        if self.left is None or self.right is None or self.chunk or kv_len % block_kv:
            return None
        return self.left + self.right + 1

    def array(self, q_len: int, kv_len: int) -> np.ndarray:
        """The mask as a bool array ``(q_len, kv_len)``, True where a key is seen."""
        query, key = np.arange(q_len)[:, None], np.arange(kv_len)
        position = query + (kv_len - q_len if self.offset is None else self.offset)
        seen = np.ones((q_len, kv_len), bool)
        if self.left is not None:
            seen &= key >= position - self.left
        if self.right is not None:
            seen &= key <= position + self.right
        if self.chunk is not None:
            seen &= key // self.chunk == position // self.chunk
        return seen


class ArrayMask:
    """A mask that is an array. Equal ones are equal, so it can be a static argument of ``jax.jit``.

    Args:
      seen: a bool array of numpy, ``(q_len, kv_len)``, True where a key is seen.

    Raises:
      ValueError: it is something else.
    """

    def __init__(self, seen: np.ndarray) -> None:
        if not isinstance(seen, np.ndarray) or seen.dtype != bool or seen.ndim != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "seen of an ArrayMask must be a bool array of numpy of the shape (q_len, kv_len), "
                f"but it is {type(seen).__name__}, dtype {getattr(seen, 'dtype', None)}, "
                f"shape {np.shape(seen)}"
            )
        self._seen = seen.copy()

    def array(self, q_len: int, kv_len: int) -> np.ndarray:
        """The mask itself.

        Raises:
          ValueError: it is not for so many queries and keys.
        """
        if self._seen.shape != (q_len, kv_len):
            raise ValueError(
                f"mask must have the shape (q_len, kv_len), {(q_len, kv_len)}, but its shape is "
                f"{self._seen.shape}"
            )
        return self._seen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayMask) and np.array_equal(self._seen, other._seen)

    def __hash__(self) -> int:
        return hash((self._seen.shape, self._seen.tobytes()))

    def __repr__(self) -> str:
        return f"ArrayMask({self._seen.sum()} of {self._seen.size} seen)"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The visits of a kernel to blocks of scores, one a grid step, blocks of one row together.

    Attributes:
      row: number of the row of blocks of each visit.
      column: number of its column.
      member: which of the heads that share keys it is for.
      flags: sum of FIRST and LAST (of its row), PARTIAL (has keys to hide), EMPTY (nothing to see,
        only there so that the row's output is written) and the number of the mask's block.
      blocks: the different partial blocks of an array, int8; None for a rule.
    """

    row: np.ndarray
    column: np.ndarray
    member: np.ndarray
    flags: np.ndarray
    blocks: np.ndarray | None

    @property
    def steps(self) -> int:
        """How many visits there are."""
        return len(self.flags)

    def has(self, flag: int) -> bool:
        """Whether any visit has a flag."""
        return bool(np.any(self.flags & flag))

    @property
    def has_full(self) -> bool:
        """Whether any visit is to a block that shows all its keys."""
        return bool(np.any(self.flags & (PARTIAL | EMPTY) == 0))


def plan(
    mask: Mask | ArrayMask,
    lengths: tuple[int, int],
    block: tuple[int, int],
    *,
    by_keys: bool = False,
    members: int = 1,
) -> Plan:
    """The visits for a mask of ``lengths`` (queries, keys) in blocks of ``block``.

    Args:
      mask: a rule or an array of the shape ``lengths``.
      lengths: numbers of queries and keys.
      block: queries and keys in a block.
      by_keys: a row of blocks has the queries of one block of keys, not the other way round, and
        the blocks of the mask are transposed.
      members: visit the blocks of every row so many times, once for each head that shares it.
    """
    if isinstance(mask, Mask):
        some, every = _classify_rule(mask, lengths, block)
        names, blocks = np.zeros(some.shape, np.int32), None
    else:
        some, every, names, blocks = _classify_array(mask.array(*lengths), lengths, block)
    if by_keys:
        some, every, names = some.T, every.T, names.T
        blocks = None if blocks is None else np.ascontiguousarray(blocks.transpose(0, 2, 1))
    visits: list[tuple[int, int, int, int]] = []
    name = 0  # A visit that needs no block of the mask names the last one again: nothing is copied.
    for row in range(len(some)):
        columns = np.flatnonzero(some[row])
        found: list[list[int]] = []
        for member in range(members):
            for column in columns:
                partial = not every[row, column]
                name = int(names[row, column]) if partial else name
                found.append([row, int(column), member, partial * PARTIAL | name << MASK_SHIFT])
        found = found or [[row, 0, 0, EMPTY | name << MASK_SHIFT]]
        found[0][3] |= FIRST
        found[-1][3] |= LAST
        visits.extend((a, b, c, d) for a, b, c, d in found)
    row, column, member, flags = np.array(visits, np.int32).T
    return Plan(row, column, member, flags, blocks)


def _classify_rule(
    mask: Mask, lengths: tuple[int, int], block: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """For every block, whether some of it is seen and whether all of it is."""
    (q_len, kv_len), (block_q, block_kv) = lengths, block
    rows = np.arange(-(-q_len // block_q) * block_q).clip(max=q_len - 1)
    first, last = mask.interval(0, rows, q_len, kv_len, block_kv)
    first = np.zeros_like(rows) if first is None else np.asarray(first).clip(0)
    last = rows * 0 + (kv_len - 1) if last is None else np.asarray(last).clip(max=kv_len - 1)
    first, last = (np.broadcast_to(x, rows.shape)[:, None] for x in (first, last))
    start = np.arange(0, kv_len, block_kv)
    end = start + (block_kv - 1)
    some = (first <= end) & (last >= start) & (first <= last)
    every = (first <= start) & (last >= end)
    shape = (-1, block_q, len(start))
    return some.reshape(shape).any(1), every.reshape(shape).all(1)


def _classify_array(
    mask: np.ndarray, lengths: tuple[int, int], block: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """The same, the number of each partial block among the different ones, and those."""
    (q_len, kv_len), (block_q, block_kv) = lengths, block
    padded = np.pad(mask, ((0, -q_len % block_q), (0, 0)), mode="edge")
    padded = np.pad(padded, ((0, 0), (0, -kv_len % block_kv)))
    tiles = padded.reshape(-1, block_q, padded.shape[1] // block_kv, block_kv).swapaxes(1, 2)
    some, every = tiles.any((2, 3)), tiles.all((2, 3))
    numbers: dict[bytes, int] = {}
    names = np.zeros(some.shape, np.int32)
    different: list[np.ndarray] = []
    for i, j in np.argwhere(some & ~every):
        names[i, j] = numbers.setdefault(tiles[i, j].tobytes(), len(numbers))
        if len(numbers) > len(different):
            different.append(tiles[i, j])
    return some, every, names, np.stack(different).astype(np.int8) if different else None
