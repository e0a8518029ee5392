"""Random number generators that count, and what a typed key means for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import key_shape
from pallas_sim.dtypes import Array
from pallas_sim.memory import KeyArray, is_key_dtype
from pallas_sim.registry import Equation, Evaluate

#: Words that are computed at a time, so that they stay in the cache.
_CHUNK = 1 << 14
#: Up to here Python's integers are faster than numpy's arrays.
_FEW = 6
_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(key1: Any, key2: Any, count1: Any, count2: Any) -> tuple[Array, Array]:
    """Return the block cipher Threefry-2x32 with 20 rounds, of each counter with its key.

    Args:
      key1: first word of the key, uint32; all arguments are broadcast.
      key2: second word of the key.
      count1: first word of the counter.
      count2: second word of the counter.
    """
    operands = np.broadcast_arrays(key1, key2, count1, count2)
    shape = operands[0].shape
    size = operands[0].size
    first, second = np.empty(size, np.uint32), np.empty(size, np.uint32)
    flat = [word.reshape(-1) for word in operands]
    if size <= _FEW:
        for number, block in enumerate(zip(*(word.tolist() for word in flat), strict=True)):
            first[number], second[number] = _block(*block)
    else:
        for start in range(0, size, _CHUNK):
            part = slice(start, start + _CHUNK)
            key1, key2, count1, count2 = (word[part] for word in flat)
            _blocks(key1, key2, count1, count2, first[part], second[part])
    return first.reshape(shape), second.reshape(shape)


def _block(key1: int, key2: int, x: int, y: int) -> tuple[int, int]:
    keys = (key1, key2, key1 ^ key2 ^ _PARITY)
    x, y = (x + key1) & _MASK, (y + key2) & _MASK
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = (x + y) & _MASK
            y = ((y << turn) | (y >> (32 - turn))) & _MASK ^ x
        x = (x + keys[(group + 1) % 3]) & _MASK
        y = (y + keys[(group + 2) % 3] + group + 1) & _MASK
    return x, y


def _blocks(key1: Array, key2: Array, x1: Array, x2: Array, x: Array, y: Array) -> None:
    """Write the ciphers of ``x1`` and ``x2`` to ``x`` and ``y``."""
    keys = (key1, key2, key1 ^ key2 ^ np.uint32(_PARITY))
    np.add(x1, key1, out=x)
    np.add(x2, key2, out=y)
    turned = np.empty_like(x)
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x += y
            np.left_shift(y, turn, out=turned)
            y >>= 32 - turn
            y |= turned
            y ^= x
        x += keys[(group + 1) % 3]
        y += keys[(group + 2) % 3]
        y += np.uint32(group + 1)


def threefry_words(key1: Any, key2: Any, size: int) -> Array:
    """Return as many words as are needed, of counters that rise in both halves of the result.

    Args:
      key1: first words of the keys, of any shape.
      key2: second words of the keys.
      size: how many words each key gives, along a new last dimension.
    """
    half = (size + 1) // 2
    counts = np.arange(2 * half, dtype=np.uint32)
    if size % 2:
        counts[-1] = 0
    key1, key2 = np.asarray(key1)[..., None], np.asarray(key2)[..., None]
    parts = threefry2x32(key1, key2, counts[:half], counts[half:])
    return np.concatenate(parts, axis=-1)[..., :size]


def count_pairs(shape: Sequence[int]) -> tuple[Array, Array]:
    """Return upper and lower words of the position of each element."""
    count = np.arange(prod(shape), dtype=np.uint64).reshape(shape)
    return (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)


def philox4x32(state: Array, size: int) -> tuple[Array, Array]:
    """Return words of Philox-4x32 with 10 rounds, as XLA's generator gives them on a CPU.

    Args:
      state: uint32[4]: the key, which is the upper half of the counter, too, and the lower half.
      size: how many words.

    Returns:
      The state after them, and the words.
    """
    key = [int(state[0]), int(state[1])]
    low = int(state[2]) | int(state[3]) << 32
    blocks = (size + 3) // 4
    drawn = np.empty((blocks, 4), np.uint32)
    for start in range(0, blocks, _CHUNK):
        part = drawn[start : start + _CHUNK]
        count = np.arange(start, start + len(part), dtype=np.uint64) + np.uint64(low)
        c0, c1 = count & np.uint64(_MASK), count >> np.uint64(32)
        # The lower half of the counter carries into the upper one, which the state does not keep.
        upper = (count < np.uint64(low)) + np.uint64(key[0] | key[1] << 32)
        c2, c3 = upper & np.uint64(_MASK), upper >> np.uint64(32)
        k0, k1 = key
        for _ in range(10):
            even, odd = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
            c0 = (odd >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
            c2 = (even >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
            c1, c3 = odd & np.uint64(_MASK), even & np.uint64(_MASK)
            k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
        for column, word in enumerate((c0, c1, c2, c3)):
            part[:, column] = word
    low = (low + blocks) % 2**64
    after = np.array([*key, low & _MASK, low >> 32], np.uint32)
    return after, drawn.reshape(-1)[:size]


def core_generator(*seeds: int) -> np.random.Generator:
    """Return the generator of a core that was seeded by these words."""
    entropy = [int(seed) % 2**32 for seed in seeds]
    # With their number: SeedSequence takes [1] and [1, 0] for the same.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([len(entropy), *entropy])))


def draw_bits(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Return random bits of a core's generator, as integers of ``dtype``."""
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, tuple(shape), dtype, endpoint=True)


class Threefry:
    """``threefry2x32``, JAX's default."""

    def seed(self, seeds: Array) -> Array:
        """Return keys of integers: their upper 32 bits, or 0, and their lower ones."""
        wide = seeds.astype(np.int64)
        low = (wide & 0xFFFFFFFF).astype(np.uint32)
        high = ((wide >> 32) & 0xFFFFFFFF).astype(np.uint32)
        return np.stack([high if seeds.dtype.itemsize == 8 else np.zeros_like(low), low], axis=-1)

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """Return new keys, ``[..., *shape, 2]``."""
        batch = keys.shape[:-1]
        if not _partitionable():
            drawn = threefry_words(keys[..., 0], keys[..., 1], 2 * prod(shape))
            return drawn.reshape(*batch, *shape, 2)
        return np.stack(threefry2x32(*_aligned(keys, len(shape)), *count_pairs(shape)), axis=-1)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Return keys for each number of ``data``, which is broadcast with the keys."""
        data = data.astype(np.uint32)
        return np.stack(threefry2x32(keys[..., 0], keys[..., 1], np.uint32(0), data), axis=-1)

    def bits(self, keys: Array, width: int, shape: Sequence[int]) -> Array:
        """Return random integers of ``width`` bits, ``[..., *shape]``."""
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
        drawn = threefry_words(keys[..., 0], keys[..., 1], -(-width * size // 32))
        if width == 64:
            high, low = np.split(drawn.astype(np.uint64), 2, axis=-1)
            drawn = (high << np.uint64(32)) | low
        else:
            drawn = np.ascontiguousarray(drawn).view(f"uint{width}")[..., :size]
        return drawn.reshape((*keys.shape[:-1], *shape))


class Rbg:
    """``rbg``: keys of threefry, two of them a key, and bits of Philox."""

    threefry = Threefry()

    def seed(self, seeds: Array) -> Array:
        """Return keys of integers: that of threefry, twice."""
        half = self.threefry.seed(seeds)
        return np.concatenate([half, half], axis=-1)

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """Return new keys, ``[..., *shape, 4]``."""
        halves = [self.threefry.split(half, shape) for half in (keys[..., :2], keys[..., 2:])]
        return np.concatenate(halves, axis=-1)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Return keys for each number of ``data``, which is broadcast with the keys."""
        halves = [self.threefry.fold_in(half, data) for half in (keys[..., :2], keys[..., 2:])]
        return np.concatenate(halves, axis=-1)

    def bits(self, keys: Array, width: int, shape: Sequence[int]) -> Array:
        """Return random integers of ``width`` bits, ``[..., *shape]``; all of the first key."""
        shape = (*keys.shape[:-1], *shape)
        if 0 in shape:
            return np.zeros(shape, f"uint{width}")
        return generated(keys.reshape(-1, 4)[0], width, shape)[1]


class UnsafeRbg(Rbg):
    """``unsafe_rbg``: like ``rbg``, and keys are made of Philox, too."""

    def split(self, keys: Array, shape: Sequence[int]) -> Array:
        """Return new keys, ``[..., *shape, 4]``: each tenth draw."""
        drawn = self.bits(keys, 32, (10 * prod(shape), 4))
        return drawn[..., ::10, :].reshape(*keys.shape[:-1], *shape, 4)

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Return the tenth draw for each number of ``data``, which is broadcast with the keys."""
        return keys ^ self.bits(self.seed(data), 32, (10, 4))[..., -1, :]


class Pallas:
    """``pallas_tpu``: two words that seed the generator of a core."""

    def seed(self, seeds: Array) -> Array:
        """Return keys of integers: each of them twice."""
        narrow = seeds.astype(np.int32).astype(np.uint32)
        return np.stack([narrow, narrow], axis=-1)[..., None, :]

    def fold_in(self, keys: Array, data: Array) -> Array:
        """Return keys for each number of ``data``, mixed by one round of threefry."""
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
    """Return state and integers of XLA's generator; integers of few bits are parts of words."""
    size = prod(shape) * (2 if width == 64 else 1)
    state, drawn = philox4x32(state, size)
    if width == 64:
        drawn = drawn.view(np.uint64)
    return state, drawn.astype(f"uint{width}", copy=False).reshape(tuple(shape))


def _aligned(keys: Array, ndim: int) -> tuple[Array, Array]:
    """Return both words of each key, with as many dimensions more as the draw has."""
    shape = (*keys.shape[:-1], *(1,) * ndim)
    return keys[..., 0].reshape(shape), keys[..., 1].reshape(shape)


def _partitionable() -> bool:
    import jax

    return bool(jax.config.jax_threefry_partitionable)


# Typed PRNG keys in rules that move elements around: their words are additional axes.


def key_axes(eqn: Equation) -> tuple[int, ...]:
    """Return the shape of one key, if the equation moves typed PRNG keys; () for arrays."""
    for aval in (*eqn.ins, *eqn.outs):
        if is_key_dtype(getattr(aval, "dtype", None)):
            return key_shape(aval.dtype)
    return ()


def elements(eqn: Equation) -> np.dtype[Any]:
    """Return the dtype of the arrays that stand for the first result: uint32 for keys."""
    return np.dtype(np.uint32) if is_key_dtype(eqn.out.dtype) else np.dtype(eqn.out.dtype)


def raw_value(value: Any) -> Any:
    """Return what a reference to a value holds: the words of keys, and arrays as they are."""
    return value.data if isinstance(value, KeyArray) else value


def value_of(memory: Any, aval: Any) -> Any:
    """Return the value of an abstract type that is in the memory of a reference."""
    return KeyArray(memory, aval.dtype) if is_key_dtype(aval.dtype) else memory


def on_words(eqn: Equation, evaluate: Evaluate) -> Evaluate:
    """Let a function of arrays evaluate an equation, also where its operands are keys.

    Args:
      eqn: the equation.
      evaluate: takes arrays and gives arrays; keys have their words as the last axes.
    """
    if not key_axes(eqn):
        return evaluate
    dtypes = [out.dtype if is_key_dtype(out.dtype) else None for out in eqn.outs]

    def evaluate_keys(*values: Any) -> Any:
        result = evaluate(
            *(value.data if isinstance(value, KeyArray) else value for value in values)
        )
        if isinstance(result, np.ndarray):
            return result if dtypes[0] is None else KeyArray(result, dtypes[0])
        return [
            array if dtype is None else KeyArray(array, dtype)
            for array, dtype in zip(result, dtypes, strict=True)
        ]

    return evaluate_keys
