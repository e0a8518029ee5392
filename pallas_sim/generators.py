"""Threefry, the generator of a TPU core, and typed keys as operands of rules."""

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


def count_pairs(shape: Sequence[int]) -> tuple[Array, Array]:
    """Return upper and lower words of the position of each element."""
    count = np.arange(prod(shape), dtype=np.uint64).reshape(shape)
    return (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)


def core_generator(*seeds: int) -> np.random.Generator:
    """Return the generator of a core that was seeded by these words."""
    entropy = [int(seed) % 2**32 for seed in seeds]
    # With their number: SeedSequence takes [1] and [1, 0] for the same.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([len(entropy), *entropy])))


def draw_bits(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Return random bits of a core's generator, as integers of ``dtype``."""
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, tuple(shape), dtype, endpoint=True)


# ``pallas_tpu``: a key is two words, which seed the generator of a core.


def key_of_core(seeds: Array) -> Array:
    """Return keys of integers: each of them twice."""
    narrow = seeds.astype(np.int32).astype(np.uint32)
    return np.stack([narrow, narrow], axis=-1)[..., None, :]


def folded_key_of_core(keys: Array, data: Array) -> Array:
    """Return keys for each number of ``data``, mixed by one round of threefry."""
    first, second = keys[..., 0, 0], keys[..., 0, 1] + data.astype(np.uint32)
    turned = (second << np.uint32(13)) | (second >> np.uint32(19))
    total = first + second
    return np.stack([total, turned ^ total], axis=-1)[..., None, :]


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
