"""Copies of memory as another dtype; ``test_views`` has all other views."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError
from pallas_sim.memory import Outside
from pallas_sim.transforms import AxisSlice, Bitcast, Indexed
from pallas_sim.windows import read


def test_an_index_beyond_the_edge():
    rows = Indexed((AxisSlice(1, 2, 1), AxisSlice(0, 8, 1)), (2, 8), ())
    array, transforms = np.zeros((4, 8), np.int16), [Bitcast(np.dtype("int32")), rows]
    with pytest.raises(Outside) as found:
        read(array, transforms, ())
    assert found.value.shape == (2, 8)


X = jnp.arange(32 * 128, dtype=jnp.float32).reshape(32, 128).astype(jnp.bfloat16)


def copies(before_wait, cast=True):
    """Copies half of a buffer as 32-bit words, and does something before the wait."""

    def body(x_ref, o_ref, buffer, semaphore):
        buffer[...] = x_ref[...]
        words = buffer.bitcast(jnp.int32)
        source = words.at[pl.ds(0, 8)] if cast else buffer.at[pl.ds(0, 16)]
        target = o_ref.bitcast(jnp.int32).at[pl.ds(0, 8)]
        target = target if cast else o_ref.at[pl.ds(0, 16)]
        copy = pltpu.make_async_copy(source, target, semaphore)
        copy.start()
        before_wait(buffer, words)
        copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.VMEM(X.shape, X.dtype), pltpu.SemaphoreType.DMA],
    )


def zero(ref, first, count):
    ref[first : first + count, :] = jnp.zeros((count, 128), ref.dtype)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("cast", [True, False])
def test_races(cast, seed):
    def kinds(before_wait):
        found = simulate(copies(before_wait, cast), X, seed=seed)
        return {finding.kind for finding in found.findings}

    assert kinds(lambda buffer, words: zero(buffer, 14, 2)) == {"race"}
    assert kinds(lambda buffer, words: zero(words, 7, 1)) == {"race"}
    assert kinds(lambda buffer, words: zero(buffer, 16, 2)) == set()
    assert kinds(lambda buffer, words: zero(words, 8, 1)) == set()


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("column", [100, 128])
def test_a_race_with_a_part_in_another_shape(column, seed):
    """The shape is no view of the part, which has gaps between its rows."""

    def body(x_ref, o_ref, buffer, semaphore):
        buffer[...] = jnp.ones(buffer.shape)
        part = buffer.at[:, pl.ds(0, 128)].reshape(2048)
        copy = pltpu.make_async_copy(part, o_ref, semaphore)
        copy.start()
        buffer[3, column : column + 28] = jnp.zeros(28)
        copy.wait()

    function = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((2048,), jnp.float32),
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.VMEM((16, 256), jnp.float32), pltpu.SemaphoreType.DMA],
    )
    kinds = {finding.kind for finding in simulate(function, X, seed=seed).findings}
    assert kinds == ({"race"} if column < 128 else set())


def test_values():
    found = simulate(copies(lambda buffer, words: None), X)
    np.testing.assert_array_equal(found.values[:16], X[:16])


def test_a_copy_beyond_the_edge():
    def body(x_ref, o_ref, semaphore):
        words = x_ref.bitcast(jnp.int32).at[pl.ds(pl.program_id(0) + 12, 8)]
        pltpu.async_copy(words, o_ref, semaphore).wait()

    function = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.int32),
        grid=(1,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    with pytest.raises(BoundsError, match=r"indices 12 to 19 of axis 0 of its view \[16, 128\]"):
        simulate(function, X)
