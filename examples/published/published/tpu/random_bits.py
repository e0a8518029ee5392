"""Random bits by counting: Threefry and Philox as Pallas kernels, and the example `double`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu import example_kernel
from jax.experimental.pallas.ops.tpu.random import philox, threefry

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear
from pytest_pallas import strategies as pst


def threefry_bits(key: Any, *, shape: tuple[int, ...]) -> Any:
    return threefry.plthreefry_random_bits(key, 32, shape)


def threefry_reference(key: Any, *, shape: tuple[int, ...]) -> Any:
    """The bits of `jax.random`, of which the kernel says that it is a fusion."""
    with jax.threefry_partitionable(True):
        wrapped = jax.random.wrap_key_data(key, impl="threefry2x32")
        return jax.random.bits(wrapped, shape, jnp.uint32)


def philox_bits(key: Any, *, shape: tuple[int, ...], offset: int = 0) -> Any:
    return philox.philox_4x32_count(key, shape, offset=offset)


def philox_reference(key: Any, *, shape: tuple[int, ...], offset: int = 0) -> Any:
    """Philox 4x32-10 (Salmon et al., SC 2011) of a counter: the second word counts, in row order.

    The output is the first word, xor the second.
    """
    counts = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32).reshape(shape) + np.uint32(offset)
    zeros = jnp.zeros_like(counts)
    words, keys = (zeros, counts, zeros, zeros), (key[0], key[1])
    for _ in range(10):
        high0, low0 = _product(0xD2511F53, words[0])
        high1, low1 = _product(0xCD9E8D57, words[2])
        words = (high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0)
        keys = (keys[0] + np.uint32(0x9E3779B9), keys[1] + np.uint32(0xBB67AE85))
    return words[0] ^ words[1]


def _product(constant: int, x: Any) -> tuple[Any, Any]:
    """The high and the low 32 bits of a product, in halves of 16 bits."""
    a, b = np.uint32(constant >> 16), np.uint32(constant & 0xFFFF)
    c, d = x >> np.uint32(16), x & np.uint32(0xFFFF)
    middle = a * d + ((b * d) >> np.uint32(16))
    other = b * c + (middle & np.uint32(0xFFFF))
    return a * c + (middle >> np.uint32(16)) + (other >> np.uint32(16)), np.uint32(constant) * x


def _bits(name: str, shapes: list[tuple[int, ...]], **rest: Any) -> KernelSpec:
    kernel, reference = {
        "threefry": (threefry_bits, threefry_reference),
        "philox": (philox_bits, philox_reference),
    }[name.split("_")[0]]
    options = {"shape": st.sampled_from(shapes)} | rest.pop("options", {})
    return KernelSpec(
        name=name,
        kernel=kernel,
        reference=reference,
        backends=TPU,
        inputs=pst.arguments(
            pst.arrays("words", dtype="uint32", dims={"words": 2}, values="full"), options=options
        ),
        exact=2**32,
        vmappable=False,
        **rest,
    )


FLAT = [(), (1,), (257,), (1, 1), (3, 300), (256, 256), (300, 257), (512, 130)]
CUBES = [(2, 8, 8), (3, 300, 300)]
DEEP = [(2, 3, 130), (2, 8, 300), (3, 257, 5), (2, 2, 3, 5)]
REASON = "rows of an array of three axes are counted by the second to last axis: numbers repeat"

THREEFRY = _bits("threefry", FLAT + CUBES)
THREEFRY_DEEP = _bits(
    "threefry_deep", DEEP, checks=("forward",), xfail=fails("tpu-sim", REASON, "forward")
)
PHILOX = _bits("philox", FLAT + CUBES, options={"offset": st.sampled_from([0, 1, 2**32 - 5])})
PHILOX_DEEP = _bits(
    "philox_deep", DEEP, checks=("forward",), xfail=fails("tpu-sim", REASON, "forward")
)

DOUBLE = KernelSpec(
    name="double",
    kernel=example_kernel.double,
    reference=lambda x: x * 2,
    backends=TPU,
    inputs=pst.arrays(
        "m n", dtype=pst.dtypes("bfloat16", "float32", "int32"), around={"m": 8, "n": 128}
    ),
    exact=True,
    relations=(Linear(0),),
)
