"""What holds of random kernels: structure, and distributions on a TPU or a simulation of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_sim import simulate
from reference_kernels.random import dropout, gaussian_dropout, noise, sample

N = 1024 * 1024


@pytest.fixture
def run() -> Callable[..., Any]:
    """Call on a TPU if there is one, else on a simulated one; the answer in numpy arrays."""

    def on_chip(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if jax.default_backend() == "tpu":
            return jax.tree.map(np.asarray, function(*args, **options))
        return simulate(function, *args, **options).values

    return on_chip


def seed(value: int = 7) -> jax.Array:
    return jnp.int32(value)


def refuses(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


class TestMisuse:
    @pytest.mark.parametrize("drop", [dropout, gaussian_dropout])
    def test_dropout(self, drop: Any) -> None:
        x = np.zeros((8, 128), np.float32)
        refuses(lambda: drop(x[0], seed(), rate=0.5), "x must have the shape (m, n)")
        refuses(lambda: drop(x > 0, seed(), rate=0.5), "x must be of float32 or bfloat16")
        refuses(lambda: drop(x, seed()[None], rate=0.5), "seed must be a scalar of int32")
        refuses(lambda: drop(x, jnp.float32(1), rate=0.5), "but it is float32[]")
        refuses(lambda: drop(x, seed(), rate=1.0), "rate must be at least 0 and below 1")
        refuses(lambda: drop(x, seed(), rate=-0.1), "but it is -0.1")
        refuses(lambda: drop(x, seed(), rate=0.1, block_rows=0), "block_rows must be a positive")

    def test_sampler(self) -> None:
        x = np.zeros((8, 128), np.float32)
        words = "sampler must be one of bits, bernoulli, but it is 'uniform'"
        refuses(lambda: dropout(x, seed(), rate=0.1, sampler="uniform"), words)

    def test_noise(self) -> None:
        refuses(lambda: noise(jnp.uint32(1), rows=8, columns=8), "seed must be a scalar of int32")
        refuses(lambda: noise(seed(), rows=0, columns=8), "rows must be a positive integer")
        refuses(lambda: noise(seed(), rows=8, columns=8, kind="t"), "kind must be one of bits")

    def test_sample(self) -> None:
        key = jax.random.key(0)
        words = "key must be a scalar key of threefry"
        refuses(lambda: sample(jax.random.key_data(key), rows=8, columns=8), words)
        refuses(lambda: sample(jax.random.split(key), rows=8, columns=8), words)
        refuses(lambda: sample(jax.random.key(0, impl="rbg"), rows=8, columns=8), words)
        refuses(lambda: sample(key, rows=8, columns=-1), "columns must be a positive integer")
        refuses(lambda: sample(key, rows=8, columns=8, distribution="t"), "distribution must be")
        refuses(
            lambda: sample(key, rows=8, columns=8, generator="rbg"), "generator must be threefry"
        )


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_gaussian_dropout_compiles(pallas_compile: Any, target: str) -> None:
    shapes = jax.ShapeDtypeStruct((129, 200), "bfloat16"), jax.ShapeDtypeStruct((), "int32")
    report = pallas_compile(gaussian_dropout, *shapes, options={"rate": 0.25}, target=target)
    assert report.kernel_calls == 1


class TestRandomNumbers:
    """Six standard deviations of what is measured: a right generator fails once in 10^9 runs."""

    @pytest.mark.parametrize("sampler", ["bits", "bernoulli"])
    @pytest.mark.parametrize("rate", [0.1, 0.5])
    def test_dropout_drops_its_share(self, run: Any, sampler: str, rate: float) -> None:
        out = run(dropout, jnp.ones((1024, 1024)), seed(), rate=rate, sampler=sampler)
        assert abs((out == 0).mean() - rate) < 6 * (rate * (1 - rate) / N) ** 0.5

    def test_rows_blocks_and_seeds_differ(self, run: Any) -> None:
        x = jnp.ones((512, 1024))
        one, other = (run(dropout, x, seed(s), rate=0.5) != 0 for s in (1, 2))
        for first, second in ((one[:256], one[256:]), (one[:-1], one[1:]), (one, other)):
            assert abs((first == second).mean() - 0.5) < 6 * 0.5 / first.size**0.5

    def test_the_gradient_has_the_mask(self, run: Any) -> None:
        def both(x: Any) -> Any:
            out, pull = jax.vjp(lambda x: dropout(x, seed(), rate=0.5), x)
            return out, pull(jnp.ones_like(out))[0]

        out, gradient = run(both, jnp.ones((512, 256)))
        np.testing.assert_array_equal(gradient, out)

    def test_samples_of_other_keys_are_others(self, run: Any) -> None:
        first, second = (run(sample, jax.random.key(k), rows=8, columns=128) for k in (0, 1))
        assert (first != second).mean() > 0.99

    def test_uniform(self, run: Any) -> None:
        out = run(noise, seed(), rows=1024, columns=1024).astype(np.float64)
        assert abs(out.mean() - 1 / 2) < 6 * (1 / 12 / N) ** 0.5
        assert abs(out.var() - 1 / 12) < 6 * (1 / 180 / N) ** 0.5

    def test_normal(self, run: Any) -> None:
        out = run(noise, seed(), rows=1024, columns=1024, kind="normal").astype(np.float64)
        assert abs(out.mean()) < 6 / N**0.5
        assert abs(out.var() - 1) < 6 * (2 / N) ** 0.5

    def test_bits(self, run: Any) -> None:
        out = run(noise, seed(), rows=1024, columns=1024, kind="bits")
        for bit in range(32):
            assert abs(((out >> bit) & 1).mean() - 0.5) < 6 * 0.5 / N**0.5
