"""What a typed key means: seeding, splitting, folding in and bits, for each implementation.

Keys are arrays of words, ``uint32[..., words]``. The bits are those of JAX; those of ``rbg`` and
``unsafe_rbg`` are what XLA gives on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from pytest_pallas.simulator.generators import (
    Array,
    count_pairs,
    philox4x32,
    threefry2x32,
    threefry_words,
)


class Threefry:
    """``threefry2x32``, JAX's default."""

    def seed(self, seeds: Array) -> Array:
        """Keys of integers: their upper and lower 32 bits; integers of 32 bits have no upper."""
        wide = seeds.astype(np.int64)
        low = (wide & 0xFFFFFFFF).astype(np.uint32)
        high = ((wide >> 32) & 0xFFFFFFFF).astype(np.uint32)
        return np.stack([high if seeds.dtype.itemsize == 8 else np.zeros_like(low), low], axis=-1)

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """New keys, ``[..., *shape, 2]``."""
        batch = keys.shape[:-1]
        if not _partitionable():
            words = threefry_words(keys[..., 0], keys[..., 1], 2 * prod(shape))
            return words.reshape(*batch, *shape, 2)
        return np.stack(threefry2x32(*_aligned(keys, len(shape)), *count_pairs(shape)), axis=-1)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Keys for each number of ``data``, which is broadcast with the keys."""
        data = data.astype(np.uint32)
        return np.stack(threefry2x32(keys[..., 0], keys[..., 1], np.uint32(0), data), axis=-1)

    def bits(self, keys: Array, width: int, shape: Sequence[int]) -> Array:
        """Random integers of ``width`` bits, ``[..., *shape]``."""
        dtype = np.dtype(f"uint{width}")
        if not _partitionable():
            return self._bits_in_order(keys, width, shape)
        high, low = threefry2x32(*_aligned(keys, len(shape)), *count_pairs(shape))
        if width == 64:
            return (high.astype(dtype) << np.uint64(32)) | low
        low ^= high
        return low.astype(dtype, copy=False)

    def _bits_in_order(self, keys: Array, width: int, shape: Sequence[int]) -> Array:
        size = prod(shape)
        words = threefry_words(keys[..., 0], keys[..., 1], -(-width * size // 32))
        if width == 64:
            high, low = np.split(words.astype(np.uint64), 2, axis=-1)
            words = (high << np.uint64(32)) | low
        else:
            words = np.ascontiguousarray(words).view(f"uint{width}")[..., :size]
        return words.reshape((*keys.shape[:-1], *shape))


class Rbg:
    """``rbg``: keys of threefry, two of them a key, and bits of Philox."""

    threefry = Threefry()

    def seed(self, seeds: Array) -> Array:
        """Keys of integers: that of threefry, twice."""
        half = self.threefry.seed(seeds)
        return np.concatenate([half, half], axis=-1)

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """New keys, ``[..., *shape, 4]``."""
        halves = [self.threefry.split(half, shape) for half in (keys[..., :2], keys[..., 2:])]
        return np.concatenate(halves, axis=-1)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Keys for each number of ``data``, which is broadcast with the keys."""
        halves = [self.threefry.fold_in(half, data) for half in (keys[..., :2], keys[..., 2:])]
        return np.concatenate(halves, axis=-1)

    def bits(self, keys: Array, width: int, shape: Sequence[int]) -> Array:
        """Random integers of ``width`` bits, ``[..., *shape]``; all of the first key."""
        shape = (*keys.shape[:-1], *shape)
        if 0 in shape:
            return np.zeros(shape, f"uint{width}")
        return generated(keys.reshape(-1, 4)[0], width, shape)[1]


class UnsafeRbg(Rbg):
    """``unsafe_rbg``: like ``rbg``, and keys are made of Philox, too."""

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """New keys, ``[..., *shape, 4]``: each tenth draw."""
        words = self.bits(keys, 32, (10 * prod(shape), 4))
        return words[..., ::10, :].reshape(*keys.shape[:-1], *shape, 4)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Keys for each number of ``data``, which is broadcast with the keys: the tenth draw."""
        return keys ^ self.bits(self.seed(data), 32, (10, 4))[..., -1, :]


class Pallas:
    """``pallas_tpu``: two words that seed the generator of a core."""

    def seed(self, seeds: Array) -> Array:
        """Keys of integers: each of them twice."""
        words = seeds.astype(np.int32).astype(np.uint32)
        return np.stack([words, words], axis=-1)[..., None, :]

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Keys for each number of ``data``, mixed by one round of threefry."""
        first, second = keys[..., 0, 0], keys[..., 0, 1] + data.astype(np.uint32)
        turned = (second << np.uint32(13)) | (second >> np.uint32(19))
        total = first + second
        return np.stack([total, turned ^ total], axis=-1)[..., None, :]


#: By the name of an implementation; what is missing is evaluated by JAX.
IMPLEMENTATIONS: dict[str, Any] = {
    "threefry2x32": Threefry(),
    "rbg": Rbg(),
    "unsafe_rbg": UnsafeRbg(),
    "pallas_tpu": Pallas(),
}


def generated(state: Array, width: int, shape: Sequence[int]) -> tuple[Array, Array]:
    """State and integers of XLA's generator, whose integers of few bits are parts of words."""
    size = prod(shape) * (2 if width == 64 else 1)
    state, words = philox4x32(state, size)
    if width == 64:
        words = words.view(np.uint64)
    return state, words.astype(f"uint{width}", copy=False).reshape(tuple(shape))


def _aligned(keys: Array, ndim: int) -> tuple[Array, Array]:
    """Both words of each key, with as many dimensions more as the draw has."""
    shape = (*keys.shape[:-1], *(1,) * ndim)
    return keys[..., 0].reshape(shape), keys[..., 1].reshape(shape)


def _partitionable() -> bool:
    import jax

    return bool(jax.config.jax_threefry_partitionable)
