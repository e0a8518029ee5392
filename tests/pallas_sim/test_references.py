"""Loads from references and stores to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError
from pallas_sim.evaluation import prepare


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(1, int(np.prod(shape)) + 1).reshape(shape).astype(dtype)


def run(body: Any, *args: Any, out: Any = None, **options: Any) -> Any:
    """The output of a kernel of whole arrays; by default it is shaped like the first argument."""
    shape = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype) if out is None else out
    return simulate(lambda *args: pl.pallas_call(body, out_shape=shape, **options)(*args), *args)


def test_slices_with_a_start_that_is_computed():
    def body(x_ref, i_ref, o_ref):
        i = i_ref[0]
        o_ref[pl.ds(i, 3), :] = x_ref[pl.ds(i + 1, 3), :] * 10

    x = array(8, 4)
    found = run(body, x, np.array([2], np.int32)).values
    np.testing.assert_array_equal(found[2:5], x[3:6] * 10)
    assert np.isnan(found[:2]).all()
    assert np.isnan(found[5:]).all()


def test_strided_slices():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[pl.ds(1, 3, stride=2), :] = x_ref[pl.ds(0, 3, stride=3), :]

    x = array(8, 4)
    found = run(body, x).values
    wanted = np.zeros_like(x)
    wanted[1:6:2] = x[0:7:3]
    np.testing.assert_array_equal(found, wanted)


def test_windows_of_windows():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        window = o_ref.at[pl.ds(2, 4), :].at[pl.ds(1, 2), 0:2]
        window[...] = x_ref.at[4:8][1:3, 2:4]

    x = array(8, 4)
    found = run(body, x).values
    wanted = np.zeros_like(x)
    wanted[3:5, 0:2] = x[5:7, 2:4]
    np.testing.assert_array_equal(found, wanted)


def test_single_rows_and_elements():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[1] = x_ref[2]
        o_ref[0, 3] = x_ref[3, 1]

    x = array(4, 4)
    found = run(body, x).values
    wanted = np.zeros_like(x)
    wanted[1], wanted[0, 3] = x[2], x[3, 1]
    np.testing.assert_array_equal(found, wanted)


def test_arrays_of_indices():
    def body(x_ref, i_ref, o_ref):
        i = i_ref[...]
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[i, :] = x_ref[i, :] * 2

    x = array(8, 4)
    index = np.array([6, 1, 3], np.int32)
    found = run(body, x, index).values
    wanted = np.zeros_like(x)
    wanted[index] = 2 * x[index]
    np.testing.assert_array_equal(found, wanted)


def test_masked_loads_need_only_what_the_mask_leaves_in():
    def body(x_ref, o_ref):
        cols = jax.lax.broadcasted_iota(jnp.int32, (8,), 0)
        o_ref[...] = load(x_ref, cols < 5, 7.0)

    x = array(5)
    out = jax.ShapeDtypeStruct((8,), np.float32)
    found = run(body, x, out=out).values
    np.testing.assert_array_equal(found, [1, 2, 3, 4, 5, 7, 7, 7])


def test_masked_loads_without_other_give_what_was_never_written():
    def body(x_ref, o_ref):
        cols = jax.lax.broadcasted_iota(jnp.int32, (8,), 0)
        o_ref[...] = load(x_ref, cols < 5, None)

    found = run(body, array(8)).values
    np.testing.assert_array_equal(found[:5], [1, 2, 3, 4, 5])
    assert np.isnan(found[5:]).all()


def test_masked_loads_beyond_the_edge_are_errors_where_the_mask_holds():
    def body(x_ref, o_ref):
        cols = jax.lax.broadcasted_iota(jnp.int32, (8,), 0)
        o_ref[...] = load(x_ref, cols < 6, 0.0)

    with pytest.raises(BoundsError, match=r"load from x_ref.*beyond its edge"):
        run(body, array(5), out=jax.ShapeDtypeStruct((8,), np.float32))


def test_masked_stores_keep_what_the_mask_leaves_out():
    def body(x_ref, o_ref):
        cols = jax.lax.broadcasted_iota(jnp.int32, (8,), 0)
        o_ref[...] = jnp.zeros_like(o_ref)
        store(o_ref, x_ref[...], (cols % 3 == 0) & (cols < 5))

    out = jax.ShapeDtypeStruct((5,), np.float32)
    found = run(body, array(8), out=out).values
    np.testing.assert_array_equal(found, [1, 0, 0, 4, 0])


def load(ref: Any, mask: Any, other: Any) -> Any:
    start = jnp.sum(mask) * 0  # computed, so that the window may be larger than the reference
    return plgpu.load(ref.at[pl.ds(start, 8)], mask=mask, other=other)


def store(ref: Any, value: Any, mask: Any) -> None:
    start = jnp.sum(mask) * 0
    plgpu.store(ref.at[pl.ds(start, 8)], value, mask=mask)


@pytest.mark.parametrize(("start", "first", "last"), [(-1, -1, 1), (6, 6, 8)])
def test_a_slice_beyond_the_edge_is_an_error_with_line_and_program(start, first, last):
    def body(x_ref, i_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[0:3, :] = x_ref[pl.ds(i_ref[0], 3), :]

    with pytest.raises(BoundsError) as caught:
        run(body, array(8, 4), np.array([start], np.int32))
    message = str(caught.value)
    assert f"indices {first} to {last} of axis 0, which has 8 elements" in message
    assert "load from x_ref [8, 4]" in message
    assert f"in body at {__file__}" in message


def test_an_index_below_zero_is_beyond_the_edge():
    def body(x_ref, i_ref, o_ref):
        o_ref[...] = x_ref[...]
        o_ref[i_ref[0], :] = x_ref[0, :]

    with pytest.raises(BoundsError, match=r"store to o_ref.*index -1 of axis 0"):
        run(body, array(8, 4), np.array([-1], np.int32))


def test_an_array_of_indices_names_those_beyond_the_edge():
    def body(x_ref, i_ref, o_ref):
        o_ref[...] = x_ref[i_ref[...], :]

    with pytest.raises(BoundsError, match="edge: indices 8 to 9 of axis 0"):
        run(
            body,
            array(8, 4),
            np.array([0, 8, 9], np.int32),
            out=jax.ShapeDtypeStruct((3, 4), np.float32),
        )


def test_reshaped_references():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        flat = o_ref.reshape(4, 8)
        flat[1:3, :] = x_ref.reshape(4, 8)[2:4, :]

    x = array(8, 4)
    found = run(body, x).values
    wanted = np.zeros((4, 8), np.float32)
    wanted[1:3] = x.reshape(4, 8)[2:4]
    np.testing.assert_array_equal(found, wanted.reshape(8, 4))


def test_bitcast_references_pack_pairs_of_rows():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref.bitcast(jnp.uint32)[...]

    x = np.arange(4 * 128, dtype=np.uint16).reshape(4, 128)
    out = jax.ShapeDtypeStruct((2, 128), np.uint32)
    found = run(body, x, out=out).values
    wide = x.astype(np.uint32)
    np.testing.assert_array_equal(found, wide[0::2] | (wide[1::2] << 16))


def test_stores_through_bitcast_references():
    def body(x_ref, o_ref):
        o_ref.bitcast(jnp.uint32)[...] = x_ref[...]

    x = array(2, 128, dtype=np.uint32) * 65537
    out = jax.ShapeDtypeStruct((4, 128), np.uint16)
    found = run(body, x, out=out).values
    np.testing.assert_array_equal(found[0::2], (x & 0xFFFF).astype(np.uint16))
    np.testing.assert_array_equal(found[1::2], (x >> 16).astype(np.uint16))


def test_transposed_references():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref.transpose((1, 0))[...]

    x = array(8, 4)
    found = run(body, x, out=jax.ShapeDtypeStruct((4, 8), np.float32)).values
    np.testing.assert_array_equal(found, x.T)


def test_a_load_is_not_changed_by_a_later_store():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]
        before = o_ref[...]
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] = before + o_ref[...]

    x = array(8, 4)
    np.testing.assert_array_equal(run(body, x).values, x)


def test_scoped_memory_begins_with_what_was_never_written():
    def body(x_ref, o_ref):
        def scope(scratch):
            o_ref[...] = scratch[...]
            scratch[...] = x_ref[...]
            o_ref[0] = scratch[0]

        pl.run_scoped(scope, pltpu.VMEM((8, 4), jnp.float32))

    x = array(8, 4)
    found = run(body, x).values
    np.testing.assert_array_equal(found[0], x[0])
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (jnp.int4, jnp.int32),
        (jnp.uint8, jnp.int4),
        (jnp.int32, jnp.uint4),
        (jnp.int8, jnp.uint8),
        (jnp.bfloat16, jnp.int4),
        (jnp.int16, jnp.float32),
    ],
)
def test_references_as_another_dtype(source: Any, target: Any):
    """A load and a store through the bits of another dtype are what ``pltpu.bitcast`` says."""
    x = jnp.asarray(np.arange(16 * 4).reshape(16, 4) % 7, source)
    y = jax.eval_shape(lambda x: pltpu.bitcast(x, target), x)

    def loads(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.bitcast(target)[...]

    def stores(y_ref: Any, o_ref: Any) -> None:
        o_ref.bitcast(target)[...] = y_ref[...]

    wanted = simulate(lambda x: pltpu.bitcast(x, target), x).values
    assert wanted.shape == y.shape
    loaded = run(loads, x, out=y).values
    assert loaded.dtype == wanted.dtype
    assert loaded.tobytes() == wanted.tobytes()
    stored = run(stores, loaded, out=jax.ShapeDtypeStruct(x.shape, x.dtype)).values
    assert stored.tobytes() == np.asarray(x).tobytes()


def test_only_a_swap_that_somebody_reads_copies_what_was_there():
    def body(x_ref, o_ref, old_ref):
        o_ref[...] = x_ref[...]
        old_ref[...] = jax.ref.swap(o_ref, slice(None), 2 * x_ref[...])

    x = array(8, 4)

    def kernel(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out_shape=[shape, shape])(x)

    new, old = simulate(kernel, x).values
    np.testing.assert_array_equal(new, 2 * x)
    np.testing.assert_array_equal(old, x)
    (call,) = jax.make_jaxpr(kernel)(x).eqns
    stores = [step for step in prepare(call.params["jaxpr"]).steps if step.equation.name == "swap"]
    assert [step.equation.used for step in stores] == [False, True, False]
