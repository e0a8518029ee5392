"""``backends.variations``: fills of uninitialized memory."""

from __future__ import annotations

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.backends.protocol import WORDS, Call, Contents, Fill, RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.grid.kernel_calls import kernel_calls
from pytest_pallas.grid.model import overhanging_blocks, unwritten_memory

TOP = float(np.finfo(np.float32).max)


def unwritten(dtype):
    def kernel(x):
        def body(x_ref, o_ref, scratch):
            o_ref[...] = scratch[...]

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), dtype),
            scratch_shapes=[pltpu.VMEM((8, 128), dtype)],
        )(x)

    return kernel


X = np.ones((8, 128), np.float32)


@pytest.mark.parametrize(
    ("dtype", "high", "low"),
    [
        (jnp.float32, TOP, -TOP),
        (jnp.bfloat16, float(jnp.finfo(jnp.bfloat16).max), float(jnp.finfo(jnp.bfloat16).min)),
        (jnp.int32, 2**31 - 1, 0),
        (jnp.uint8, 255, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_memory_holds_what_was_asked_for(dtype, high, low):
    kernel = unwritten(dtype)
    found = [
        tpu_sim().run(Call(function=kernel, args=(X,), fill=fill)).unwrap()
        for fill in (Fill("high"), None, Fill("low"), Fill("high"))
    ]
    assert [float(array[0, 0]) for array in (found[0], found[2], found[3])] == [high, low, high]
    assert all((array == array[0, 0]).all() for array in (found[0], found[2]))
    if jnp.issubdtype(dtype, jnp.floating):
        assert np.isnan(found[1].astype(np.float32)).all()


def test_one_place_alone():
    """Row by row: scratch, memory of the body, beyond the edge, never written, and written."""

    def kernel(x):
        def body(x_ref, o_ref, scratch):
            def inner(ref):
                o_ref[0:1] = scratch[0:1]
                o_ref[1:2] = ref[0:1]
                o_ref[2:3] = x_ref[5:6]
                o_ref[4:8] = x_ref[0:4]

            pl.run_scoped(inner, pltpu.VMEM((8, 128), x.dtype))

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
        )(x)

    x = np.ones((13, 128), np.float32)
    for place, rows in {
        "scratch": (8, 9),
        "padding": (10,),
        "output": (11,),
        "memory": (8, 9, 11),
        "": (8, 9, 10, 11),
    }.items():
        fill = Fill("zero", place)
        found = tpu_sim().run(Call(function=kernel, args=(x,), fill=fill)).unwrap()
        assert tuple(np.flatnonzero(found[8:, 0] == 0) + 8) == rows
        assert found[12, 0] == 1


def test_the_place_of_a_fill_in_words():
    assert str(Fill("zero", "output")) == "0 (for bools, False) in uninitialized outputs"
    assert "in uninitialized memory" in str(Fill("high"))


def test_semaphores_start_at_zero():
    def copies(x):
        def body(x_ref, o_ref, semaphore):
            pltpu.async_copy(x_ref, o_ref, semaphore).wait()

        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x)

    call = Call(function=copies, args=(X,), fill=Fill("high"), settings=RunSettings(timeout=20))
    np.testing.assert_array_equal(tpu_sim().run(call).unwrap(), X)


def test_every_fill_has_words():
    assert set(WORDS) == {"", *get_args(Contents)}


def call_of(function, *args):
    [call] = kernel_calls(jax.make_jaxpr(function)(*args))
    return call


@pytest.mark.parametrize(
    ("rows", "block", "expected"),
    [
        (16, (8, 128), []),
        (16, (None, 128), []),
        (17, (8, 128), ["a block of input 0 hangs over its edge",
                        "a block of output 0 hangs over its edge"]),
        (16, (8, 256), ["a block of input 0 hangs over its edge",
                        "a block of output 0 hangs over its edge"]),
    ],
)  # fmt: skip
def test_blocks_that_hang_over_the_edge(rows, block, expected):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        spec = pl.BlockSpec(block, lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, shape, grid=(2,), in_specs=[spec], out_specs=spec)(x)

    assert overhanging_blocks(call_of(kernel, jnp.ones((rows, 128)))) == expected


def test_scratch_and_outputs_that_are_read():
    def kernel(x, *scratch, adds=False, allocates=False, dtype=jnp.float32):
        def body(x_ref, o_ref, *refs):
            def inner(ref):
                ref[...] = x_ref[...]
                o_ref[...] = ref[...]

            if allocates:
                pl.run_scoped(inner, pltpu.VMEM(x_ref.shape, x_ref.dtype))
            else:
                o_ref[...] = (x_ref[...] + (o_ref[...] if adds else 0)).astype(dtype)

        shape = jax.ShapeDtypeStruct(x.shape, dtype)
        return pl.pallas_call(body, out_shape=shape, scratch_shapes=scratch)(x)

    def of(*scratch, **rest):
        return unwritten_memory(call_of(lambda x: kernel(x, *scratch, **rest), X))

    assert of() == []
    assert of(pltpu.SemaphoreType.DMA) == []
    assert of(pltpu.VMEM((8, 128), jnp.float32)) == ["scratch"]
    assert of(adds=True) == ["output 0"]
    assert of(allocates=True) == ["memory that the body allocates"]
