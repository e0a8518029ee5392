"""Windows of memory as another dtype: their values, and the memory that they lie in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError
from pallas_sim.memory import Elements, Outside
from pallas_sim.transforms import AxisSlice, Bitcast, Indexed, Operand, Reshaped
from pallas_sim.windows import bitcast_rows, read, region_of, write

BF16, INT4 = ml_dtypes.bfloat16, ml_dtypes.int4

#: Dtypes of memory and of windows of it.
PAIRS = [
    ("int16", "int32"),
    (BF16, "uint32"),
    ("uint8", "int32"),
    (INT4, "int32"),
    ("int32", "uint16"),
    ("uint32", BF16),
    ("int32", "uint8"),
    ("float32", "int32"),
]


def memory(dtype, shape=(3, 16, 5)):
    bits = np.random.default_rng(0).integers(0, 256, (*shape, 4), np.uint8)
    if dtype is INT4:
        return (bits[..., 0] % 16).astype(np.int8).astype(INT4)
    found = np.ascontiguousarray(bits[..., : np.dtype(dtype).itemsize])
    return found.view(dtype).reshape(shape).copy()


def indexed(shape, *indices):
    parts = [
        AxisSlice(i.start, i.stop - i.start, 1) if isinstance(i, slice) else i for i in indices
    ]
    return Indexed(tuple(parts), tuple(shape), ())


def windows(shape):
    """Windows of an array of three axes: transforms and operands."""
    planes, rows, columns = shape
    whole = [slice(0, size) for size in shape]
    yield [indexed(shape, *whole)], ()
    yield [indexed(shape, 1, slice(0, rows), slice(1, 3))], ()
    yield [indexed(shape, slice(1, planes), slice(rows // 2, rows), 2)], ()
    yield [indexed(shape, 2, rows - 1, slice(0, columns))], ()
    inner = indexed(shape[1:], slice(0, rows // 2), slice(2, 4))
    yield [indexed(shape, 1, *whole[1:]), inner], ()
    yield [indexed(shape, *whole), indexed(shape, 0, *whole[1:]), Reshaped((rows * columns,))], ()
    rows_of = np.array([rows - 1, 0])
    yield [Indexed((1, Operand(0), AxisSlice(0, 2, 1)), tuple(shape), (2,))], (rows_of,)
    yield [Indexed((Operand(0), *inner.indices), tuple(shape), (2,))], (np.array([2, 0]),)


def bits(array):
    array = np.array(array, order="C")
    return array.astype(np.int8) if array.dtype == INT4 else array.view(np.uint8)


@pytest.mark.parametrize(("inner", "outer"), PAIRS)
def test_windows_are_those_of_the_whole(inner, outer):
    before = memory(inner)
    cast = bitcast_rows(before, outer)
    for window, operands in windows(cast.shape):
        transforms = [Bitcast(np.dtype(outer)), *window]
        found = read(before, transforms, operands)
        np.testing.assert_array_equal(bits(found), bits(read(cast, window, operands)))
        array, other = before.copy(), cast.copy()
        write(array, transforms, operands, np.flip)
        write(other, window, operands, np.flip)
        np.testing.assert_array_equal(bits(array), bits(bitcast_rows(other, inner)))


@pytest.mark.parametrize(("inner", "outer"), PAIRS)
def test_their_memory_is_what_a_store_changes(inner, outer):
    array = memory(inner)
    known = 0
    for window, operands in windows(bitcast_rows(array, outer).shape):
        transforms = [Bitcast(np.dtype(outer)), *window]
        part = read(array, transforms, operands)
        region = region_of(part, array, transforms, operands)
        owner = region.memory if isinstance(region, Elements) else region
        if not np.may_share_memory(owner, array):
            continue  # a part of an element, or rows that are not the first axis
        known += 1
        changed, marked = np.zeros_like(array), np.zeros_like(array)
        ones = np.full(np.shape(part), -1, f"i{part.dtype.itemsize}").view(part.dtype)
        write(changed, transforms, operands, lambda old, ones=ones: ones)
        region = region_of(read(marked, transforms, operands), marked, transforms, operands)
        if isinstance(region, Elements):
            region.memory[region.key] = 1
        else:
            region[...] = 1
        is_changed = bits(changed).reshape(*array.shape, -1).any(-1)
        np.testing.assert_array_equal(is_changed, marked.astype(np.float64) != 0)
    assert known >= 4


def test_an_index_beyond_the_edge():
    array = memory("int16", (4, 8))
    transforms = [Bitcast(np.dtype("int32")), indexed((2, 8), slice(1, 3), slice(0, 8))]
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
    with pytest.raises(BoundsError, match=r"beyond its edge: indices 12 to 19 of axis 0"):
        simulate(function, X)
