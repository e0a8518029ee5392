"""Private names of JAX: what typed random keys consist of, and what is done to them.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when their dtype has public attributes. Probe:
``tests/unit/compat/test_keys.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of typed keys; a dtype of numpy is none."""
    return hasattr(dtype, "_impl")


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the words, of uint32, that a key of this dtype consists of."""
    return tuple(dtype._impl.key_shape)


def key_implementation(dtype: Any) -> str:
    """The name of the generator that keys of this dtype are for, as ``jax.random.key`` takes it."""
    return str(dtype._impl.name)


def operation_on_keys(name: str, avals: Sequence[Any], params: Any) -> Any:
    """What a primitive of typed keys does, by the functions of their implementation."""
    if name not in ("random_seed", "random_split", "random_fold_in", "random_bits"):
        return None
    prng: Any = importlib.import_module("jax._src.random.prng")
    impl = params["impl"] if name == "random_seed" else avals[0].dtype._impl
    shape = avals[0].shape

    def wrapped(words: Any) -> Any:
        return prng.random_wrap(words, impl=impl)

    return {
        "random_seed": lambda seeds, impl: wrapped(prng.random_seed_impl_base(seeds, impl=impl)),
        "random_split": lambda keys, **how: wrapped(
            prng.random_split_impl_base(impl, prng.random_unwrap(keys), len(shape), **how)
        ),
        "random_fold_in": lambda keys, data: wrapped(
            prng.random_fold_in_impl_base(impl, prng.random_unwrap(keys), data, shape)
        ),
        "random_bits": lambda keys, **how: prng.random_bits_impl_base(
            impl, prng.random_unwrap(keys), len(shape), **how
        ),
    }[name]
