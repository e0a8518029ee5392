"""Keys and random bits of the simulator against those of JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.rules_of_jax import assert_same_bits, both

from pallas_sim.dtypes import round_by_bits
from pallas_sim.machine import Machine
from pallas_sim.simulation import evaluate

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
EVERY = (*IMPLEMENTATIONS, "in order")


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(2)


@pytest.fixture(params=EVERY)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an implementation; threefry and rbg with both ways to count."""
    if request.param != "in order":
        yield request.param
        return
    with jax.threefry_partitionable(False):
        yield "threefry2x32"


def raw(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """A function of keys as one of their words."""
    return lambda words: function(jax.random.wrap_key_data(words, impl=name))


def words_of(rng: np.random.Generator, name: str, *shape: int) -> Any:
    """Words of keys."""
    size = 2 if name == "threefry2x32" else 4
    return rng.integers(0, 2**32, (*shape, size), np.uint32)


SEEDS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 + 5, -(2**40))


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint32", "int64"])
def test_seeds(implementation: str, dtype: str) -> None:
    """Of 16, 32 and 64 bits, positive and negative."""

    def of(*seeds: Any) -> Any:
        return [jax.random.key_data(jax.random.key(seed, impl=implementation)) for seed in seeds]

    with jax.enable_x64(dtype == "int64"):
        assert_same_bits(of, *(np.array(seed).astype(dtype) for seed in SEEDS))


def test_splits(implementation: str, rng: np.random.Generator) -> None:
    """Into any number of keys, in any shape."""
    shapes = [(1,), (7,), (0,), (2, 3, 5)]
    if implementation == "threefry2x32":
        shapes.append(())

    def split(key: Any) -> Any:
        return [jax.random.key_data(jax.random.split(key, shape)) for shape in shapes]

    assert_same_bits(raw(split, implementation), words_of(rng, implementation))


def test_folds_in(implementation: str, rng: np.random.Generator) -> None:
    """Any number of 32 bits."""

    def fold_in(words: Any, *data: Any) -> Any:
        key = jax.random.wrap_key_data(words, impl=implementation)
        return [jax.random.key_data(jax.random.fold_in(key, each)) for each in data]

    data = np.array([0, 1, 77, 2**31 - 1, 2**32 - 1], np.uint32)
    assert_same_bits(fold_in, words_of(rng, implementation), *data, *data.view(np.int32))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bits(implementation: str, width: int, rng: np.random.Generator) -> None:
    """Of all widths, also where the last word is used in part."""
    shapes = [(), (7,), (2, 1, 9), (0,), (40_000,)]

    def bits(key: Any) -> Any:
        return [jax.random.bits(key, shape, f"uint{width}") for shape in shapes]

    with jax.enable_x64(width == 64):
        assert_same_bits(raw(bits, implementation), words_of(rng, implementation))


def test_many_keys(implementation: str, rng: np.random.Generator) -> None:
    """Operations of keys under vmap, once and twice (compiled at once)."""

    def operations(key: Any, data: Any) -> Any:
        folded = jax.random.fold_in(key, data)
        return (
            jax.random.bits(key, (5,)),
            jax.random.bits(folded, (3, 2), "uint8"),
            *(jax.random.key_data(each) for each in (folded, jax.random.split(key, 3))),
        )

    def mapped(words: Any, data: Any) -> Any:
        return jax.vmap(operations)(jax.random.wrap_key_data(words, impl=implementation), data)

    def one(words: Any, data: Any) -> Any:
        key = jax.random.wrap_key_data(words, impl=implementation)
        return jax.vmap(operations, (None, 0))(key, data)

    twice = jax.vmap(jax.vmap(raw(lambda key: jax.random.bits(key, (4,)), implementation)))
    data = rng.integers(0, 2**32, 5, np.uint32)
    words = words_of(rng, implementation, 5)
    single, square = words_of(rng, implementation), words_of(rng, implementation, 2, 5)
    assert_same_bits(
        lambda words, single, square, data: (
            mapped(words, data),
            one(single, data),
            twice(square),
            twice(square[:, :1]),
        ),
        words,
        single,
        square,
        data,
    )


@pytest.mark.parametrize("count", [1, 3, 7, 2000, 40_000])
def test_threefry_itself(count: int, rng: np.random.Generator) -> None:
    """The cipher, of keys and counters of any shape."""
    from jax.extend.random import threefry2x32_p

    a, b, c, d = rng.integers(0, 2**32, (4, count), np.uint32)
    assert_same_bits(
        lambda a, b, c, d, one, two: [
            threefry2x32_p.bind(a, b, c, d),
            threefry2x32_p.bind(one, two, c, d),
        ],
        *(a, b, c, d, a[0], b[0]),
    )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_rng_bit_generator(dtype: Any, rng: np.random.Generator) -> None:
    """The bits and the state after them, whose counter carries."""
    states = [
        words_of(rng, "rbg"),
        np.array([1, 2, 2**32 - 1, 7], np.uint32),
        np.array([1, 2, 2**32 - 1, 2**32 - 1], np.uint32),
        np.array([2**32 - 1, 2, 2**32 - 1, 2**32 - 1], np.uint32),
    ]

    def draw(*states: Any) -> Any:
        of_one = [(states[0], shape) for shape in [(1,), (4,), (7,)]]
        asked = [*of_one, *((key, (3, 5)) for key in states)]
        return [lax.rng_bit_generator(key, shape, dtype) for key, shape in asked]

    with jax.enable_x64(dtype == "uint64"):
        assert_same_bits(draw, *states)


def test_keys_that_are_words(rng: np.random.Generator) -> None:
    """``jax.random.PRNGKey`` and functions that take its words."""
    assert_same_bits(
        lambda key, seed: [
            jax.random.split(key, 4),
            jax.random.fold_in(key, 3),
            jax.random.bits(jax.random.clone(key), (3,)),
            jax.random.PRNGKey(seed),
        ],
        words_of(rng, "threefry2x32"),
        np.int32(5),
    )


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda key: [jax.random.uniform(key, (9, 7), t) for t in ("float32", "bfloat16")],
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (90,)),
    "randint": lambda key: jax.random.randint(key, (90,), -5, 100),
    "permutation": lambda key: jax.random.permutation(key, 100),
    "choice": lambda key: [
        jax.random.choice(key, 10, (5,), replace=False),
        jax.random.choice(key, 4, (50,), p=jnp.array([0.1, 0.2, 0.3, 0.4])),
    ],
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(3.0), shape=(50,)),
    "keys in a loop": lambda key: jax.lax.scan(
        lambda key, _: (jax.random.fold_in(key, 1), jax.random.uniform(key, (2,))), key, length=3
    )[1],
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers(sampler: str, rng: np.random.Generator) -> None:
    """Functions of ``jax.random`` give the numbers that JAX gives, by typed keys."""
    assert_same_bits(raw(SAMPLERS[sampler], "threefry2x32"), words_of(rng, "threefry2x32"))


def test_samplers_by_words(rng: np.random.Generator) -> None:
    """They take the words of a key as well."""
    names = ("uniform", "randint", "choice")
    assert_same_bits(
        lambda key: [SAMPLERS[name](key) for name in names], words_of(rng, "threefry2x32")
    )


@pytest.mark.parametrize("sampler", ["normal", "truncated_normal", "gumbel"])
def test_samplers_that_round(sampler: str, rng: np.random.Generator) -> None:
    """Those that need logarithms and the like are a few ulps away (of 1, if they are less).

    Not so few for normal numbers: XLA's ``erf_inv`` is up to 19 ulps off in the tails, where that
    of the simulator is right.
    """
    most = 24 if "normal" in sampler else 4
    options = (-1.0, 2.0) if sampler == "truncated_normal" else ()

    def sample(key: Any) -> Any:
        return getattr(jax.random, sampler)(key, *options, shape=(500,))

    for actual, wanted in both(sample, words_of(rng, "threefry2x32")):
        error = abs(actual.astype(np.float64) - wanted)
        assert (error <= most * 2.0**-23 * np.maximum(1, abs(wanted))).all()


def simulated(function: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
    """What the simulator gives for a function that JAX evaluates on a TPU only."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return evaluate(jaxpr, Machine(seed=seed), args)


def draws(*seeds: int) -> Any:
    """Two draws after seeding."""

    def function() -> Any:
        pltpu.prng_seed(*seeds)
        return pltpu.prng_random_bits((4, 8)), pltpu.prng_random_bits((4, 8))

    return simulated(function)


def test_the_generator_of_a_core() -> None:
    """Equal seeds give equal numbers; others, more, or another order of them do not."""
    first, second = draws(1, 2)
    assert first.dtype == second.dtype == np.int32
    assert (first != second).any()
    assert (np.array(draws(1, 2)) == [first, second]).all()
    for seeds in ((1,), (2, 1), (1, 2, 0), (1, 3), ()):
        assert (draws(*seeds)[0] != first).any()
    assert (first < 0).any()
    assert (first > 0).any()


def test_a_core_that_is_not_seeded_begins_by_the_seed_of_the_run() -> None:
    """And each core has a generator of its own."""

    def function() -> Any:
        return pltpu.prng_random_bits((8,))

    (one,), (again,), (other,) = (simulated(function, seed=seed) for seed in (4, 4, 5))
    assert (one == again).all()
    assert (one != other).any()


def test_keys_of_a_core() -> None:
    """A key of Pallas seeds the core; what is folded in gives other keys."""

    def function(seed: Any) -> Any:
        key = jax.random.key(seed, impl="pallas_tpu")
        folded = jax.random.fold_in(key, 3)
        first = jax.random.bits(key, (4, 8))
        return first, jax.random.bits(key, (4, 8)), jax.random.bits(folded, (4, 8)), folded

    one, again, folded, key = simulated(function, np.int32(7))
    assert one.dtype == np.uint32
    assert (one == again).all()
    assert (one != folded).any()
    assert (simulated(function, np.int32(8))[0] != one).any()
    total = 7 + 7 + 3
    assert key.tolist() == [[total, (10 << 13) ^ total]]
    words = [2**32 - 5, 2**32 - 2]
    turned = (words[1] << 13) % 2**32 | words[1] >> 19
    total = sum(words) % 2**32
    assert simulated(function, np.int32(-5))[3].tolist() == [[total, turned ^ total]]


def test_words_of_a_key_of_pallas() -> None:
    """Are taken apart and joined again, which the kernels of JAX do and no public function."""
    primitives = importlib.import_module("jax._src.pallas.mosaic.primitives")

    def function(data: Any) -> Any:
        key = jax.random.wrap_key_data(data, impl="pallas_tpu")
        first, second = primitives.unwrap_pallas_seed(key)
        return first, second, primitives.wrap_pallas_seed(second, first, impl="pallas_tpu")

    first, second, joined = simulated(function, np.array([[5, 9]], np.uint32))
    assert (int(first), int(second), joined.tolist()) == (5, 9, [[9, 5]])


def test_samplers_without_a_key() -> None:
    """``pltpu.stateful_bits`` goes on where the last draw ended."""

    def function() -> Any:
        pltpu.prng_seed(3)
        return pltpu.stateful_bits((4, 8)), pltpu.stateful_bits((4, 8))

    one, two = simulated(function)
    assert (one != two).any()
    assert (np.array(simulated(function)) == [one, two]).all()


def test_samplers_of_a_core() -> None:
    """Uniform numbers of its own generator."""

    def function(seed: Any) -> Any:
        pltpu.prng_seed(seed)
        stateful = pltpu.stateful_uniform((64, 64))
        return stateful, jax.random.uniform(jax.random.key(seed, impl="pallas_tpu"), (64, 64))

    for found in simulated(function, np.int32(2)):
        assert found.dtype == np.float32
        assert 0 <= found.min() < 0.01
        assert 0.99 < found.max() < 1
        assert abs(found.mean() - 0.5) < 0.02


def test_stochastic_round_to_bfloat16(rng: np.random.Generator) -> None:
    """To a neighbor, by the bits; special values stay."""
    x = rng.normal(size=(50, 40)).astype(np.float32)
    bits = rng.integers(0, 2**32, x.shape, np.uint32)

    def by_hand(x: Any, bits: Any) -> Any:
        word = lax.bitcast_convert_type(x, jnp.uint32) + (bits & 0xFFFF)
        return lax.bitcast_convert_type(word & jnp.uint32(0xFFFF0000), jnp.float32)

    wanted = np.asarray(jax.jit(by_hand)(x, bits)).astype(jnp.bfloat16)

    def function(x: Any, bits: Any) -> Any:
        return pltpu.stochastic_round(x, bits, target_dtype=jnp.bfloat16)

    (found,) = simulated(function, x, bits)
    assert found.dtype == jnp.bfloat16
    assert (found == wanted).all()
    special = np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)
    (found,) = simulated(function, special, np.full(4, 0xFFFFFFFF, np.uint32))
    assert (found.view(np.uint16) == special.astype(jnp.bfloat16).view(np.uint16)).all()
    payloads = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    (found,) = simulated(function, payloads, np.full(3, 0xFFFF, np.uint32))
    assert np.isnan(found.astype(np.float32)).all()


TARGETS = ("float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float4_e2m1fn", "int4")


@pytest.mark.parametrize("target", TARGETS)
def test_stochastic_round_is_right_on_average(target: str, rng: np.random.Generator) -> None:
    """Numbers become one of both neighbors, in proportion; those of the dtype stay."""
    dtype = jnp.dtype(target)
    every = np.arange(16 if "4" in target[-5:] and target != "float8_e4m3fn" else 256)
    numbers = every.astype(np.uint8).view(dtype).astype(np.float32)
    if target == "int4":
        numbers = np.arange(-8, 8, dtype=np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    small = rng.uniform(-1, 1, 500) * 2.0 ** -rng.integers(0, 16, 500)
    x = np.concatenate([rng.uniform(-6, 6, 2000), small, numbers]).astype(np.float32)
    place = np.searchsorted(numbers, x, "right") - 1
    low, high = numbers[place], numbers[np.minimum(place + 1, len(numbers) - 1)]
    rounding = round_by_bits(dtype)
    bits = np.arange(0, 65536, 1024, dtype=np.uint32) + 0xABC0000
    drawn = np.stack([rounding(x, np.full(x.shape, each)) for each in bits])
    assert drawn.dtype == dtype
    drawn = drawn.astype(np.float32)
    assert ((drawn == low) | (drawn == high)).all()
    share = np.divide(x - low, high - low, where=high > low, out=np.zeros_like(x))
    assert abs((drawn == high)[:, high > low].mean(0) - share[high > low]).max() < 1 / 60
    assert (drawn[:, -len(numbers) :] == numbers).all()
