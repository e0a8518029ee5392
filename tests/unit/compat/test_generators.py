"""The random number generator of a simulated TPU core."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import compat

SHAPE = (8, 128)


@pytest.fixture(autouse=True)
def simulated() -> Any:
    with compat.missing_operations(), pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        yield


def drawn(body: Any, *seeds: int, blocks: int = 1) -> np.ndarray:
    """What ``body(block, *seed_refs)`` draws in each block."""

    def kernel(*refs: Any) -> None:
        *seeds, o_ref = refs
        o_ref[0] = body(pl.program_id(0), *(ref[0] for ref in seeds))

    return np.asarray(
        pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((blocks, *SHAPE), jnp.uint32),
            grid=(blocks,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(seeds),
            out_specs=pl.BlockSpec((1, *SHAPE), lambda i: (i, 0, 0)),
        )(*(jnp.asarray([seed], jnp.int32) for seed in seeds))
    )


def words(block: Any, *seeds: Any) -> Any:
    pltpu.prng_seed(*seeds)
    return pltpu.bitcast(pltpu.prng_random_bits(SHAPE), jnp.uint32)


def test_equal_seeds_give_equal_numbers_and_others_others():
    first = drawn(words, 7, 1)
    np.testing.assert_array_equal(first, drawn(words, 7, 1))
    for other in [(8, 1), (7, 2), (1, 7), (7,), (7, 1, 0), (-7, 1)]:
        assert np.mean(first == drawn(words, *other)) < 0.01, other


def test_all_bits_are_random():
    bits = np.unpackbits(drawn(words, 3).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / bits.size**0.5


def test_each_draw_goes_on_where_the_last_ended():
    def body(block: Any, seed: Any) -> Any:
        pl.when(block == 0)(functools.partial(pltpu.prng_seed, seed))
        return pltpu.stateful_bits(SHAPE)

    out = drawn(body, 5, blocks=3)
    assert len(np.unique(out)) > 0.99 * out.size
    np.testing.assert_array_equal(out, drawn(body, 5, blocks=3))
    np.testing.assert_array_equal(out[:1], drawn(body, 5))


def test_without_a_seed_a_kernel_begins_like_any_other():
    def body(block: Any) -> Any:
        return pltpu.stateful_bits(SHAPE)

    first = drawn(body)
    drawn(words, 9)
    np.testing.assert_array_equal(first, drawn(body))


def test_samplers():
    def body(block: Any, seed: Any) -> Any:
        pltpu.prng_seed(seed)
        normal = pltpu.stateful_normal(SHAPE)
        uniform = pltpu.stateful_uniform(SHAPE)
        return (normal < 1.0).astype(jnp.uint32) + 2 * (uniform < 0.25).astype(jnp.uint32)

    out = drawn(body, 2)
    for share, wanted in ((np.mean(out % 2), 0.8413), (np.mean(out // 2), 0.25)):
        assert abs(share - wanted) < 6 * (wanted * (1 - wanted) / out.size) ** 0.5
