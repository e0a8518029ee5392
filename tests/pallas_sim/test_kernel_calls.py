"""Calls of kernels on the simulator: grids with names, strides, checks, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.errors import SimulationError


def like(x: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def test_a_grid_with_names_has_axis_indices() -> None:
    def kernel(o_ref: Any) -> None:
        o_ref[...] = jnp.full(
            o_ref.shape, 10 * lax.axis_index("rows") + lax.axis_index("columns"), jnp.int32
        )

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((3, 2), jnp.int32),
        grid=(("rows", 3), ("columns", 2)),
        out_specs=pl.BlockSpec((1, 1), lambda i, j: (i, j)),
    )
    assert simulate(call).values.tolist() == [[0, 1], [10, 11], [20, 21]]


@pytest.mark.parametrize(
    "slices",
    [
        (pl.ds(2, 8, 0), pl.ds(0, 16)),
        (pl.ds(1, 4, 2), pl.ds(5, 16, 0)),
        (pl.ds(7, 8, 0), pl.ds(15, 16, 0)),
    ],
)
def test_a_load_with_stride_0_repeats_an_element(slices: tuple[Any, Any]) -> None:
    x = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    indices = [one.start + np.arange(one.size) * one.stride for one in slices]
    expected = x[np.ix_(*indices)]

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[slices]

    call = pl.pallas_call(kernel, out_shape=like(expected))
    assert simulate(call, x).values.tolist() == expected.tolist()


def test_a_store_with_stride_0_is_refused() -> None:
    def kernel(o_ref: Any) -> None:
        o_ref[pl.ds(0, 8, 0)] = jnp.zeros((8,), jnp.float32)

    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(SimulationError, match="stride 0"):
        simulate(call)


def test_bounded_slices_are_refused_by_name() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        grid=(1,),
        in_specs=[pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(4, 8), 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
    )
    with pytest.raises(SimulationError, match="x_ref are bounded slices"):
        simulate(call, np.zeros((16, 128), np.float32))


def test_a_check_that_does_not_hold_is_a_finding() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pl.debug_check(x_ref[pl.program_id(0)] > 1, "x is small")
        o_ref[...] = x_ref[...]

    x = np.array([2.0, 1.0, 3.0], np.float32)
    result = simulate(pl.pallas_call(kernel, out_shape=like(x), grid=(3,)), x)
    (finding,) = result.findings
    assert finding.kind == "assertion"
    assert "x is small" in finding.message
    assert finding.program == (1,)


def test_a_kernel_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        jax.debug.print("x has {}, and is {}", x_ref[1], x_ref)
        o_ref[...] = x_ref[...]

    x = np.array([2, 7, 3], np.int32)
    simulate(pl.pallas_call(kernel, out_shape=like(x)), x)
    assert "x has 7, and is [2 7 3]" in capsys.readouterr().out


def test_a_delay_changes_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pl.delay(100)
        o_ref[...] = x_ref[...] + 1

    x = np.array([2, 7, 3], np.int32)
    assert simulate(pl.pallas_call(kernel, out_shape=like(x)), x).values.tolist() == [3, 8, 4]


def test_the_size_of_a_grid_may_be_an_array_of_one_number() -> None:
    def kernel(o_ref: Any) -> None:
        o_ref[0] = lax.cond(pl.program_id(0) == 0, lambda: 1, lambda: o_ref[0] + 1)

    def f(n: Any) -> Any:
        shape = jax.ShapeDtypeStruct((1,), jnp.int32)
        return pl.pallas_call(kernel, out_shape=shape, grid=(n,))()

    assert simulate(f, np.array([7], np.int32)).values.tolist() == [7]
    assert simulate(f, np.int32(4)).values.tolist() == [4]


def test_references_of_a_function() -> None:
    def f(x: Any) -> Any:
        ref = jax.ref.new_ref(x)
        ref[1] = 10 * ref[0]
        before = ref[...]
        ref[0] = 0
        return before, jax.ref.freeze(ref)

    x = np.array([1, 2, 3], np.int32)
    before, after = simulate(f, x).values
    assert before.tolist() == [1, 10, 3]
    assert after.tolist() == [0, 10, 3]
    assert x.tolist() == [1, 2, 3]


def test_references_of_a_state() -> None:
    def f(x: Any, y: Any) -> Any:
        def body(refs: Any) -> None:
            x_ref, y_ref = refs
            y_ref[...] += x_ref[...]
            x_ref[0] = 9

        return pl.run_state(body)((x, y))

    x, y = np.array([1, 2], np.int32), np.array([10, 20], np.int32)
    assert [each.tolist() for each in simulate(f, x, y).values] == [[9, 2], [11, 22]]
    assert x.tolist() == [1, 2]
    assert y.tolist() == [10, 20]


def test_memory_that_a_kernel_allocates() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        ref = jax.ref.empty_ref(jax.ShapeDtypeStruct((3,), jnp.float32))
        before = ref[...]
        ref[...] = x_ref[...]
        o_ref[0] = before
        o_ref[1] = ref[...]
        jax.ref.free_ref(ref)

    x = np.array([1, 2, 3], np.float32)
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((2, 3), jnp.float32))
    before, after = simulate(call, x).values
    assert np.isnan(before).all()
    assert after.tolist() == [1, 2, 3]


def test_kernels_of_typed_keys() -> None:
    keys = jax.random.split(jax.random.key(3), 4)

    def kernel(keys_ref: Any, o_ref: Any, swapped_ref: Any) -> None:
        o_ref[...] = jax.random.bits(keys_ref[0], (1, 8))
        swapped_ref[...] = keys_ref[...]
        swapped_ref[1] = jax.ref.swap(swapped_ref, 0, keys_ref[1])

    call = pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[pl.BlockSpec((2,), lambda i: (i,))],
        out_specs=[pl.BlockSpec((1, 8), lambda i: (i, 0)), pl.BlockSpec((2,), lambda i: (i,))],
        out_shape=[jax.ShapeDtypeStruct((2, 8), jnp.uint32), like(keys)],
    )
    bits, swapped = simulate(call, keys).values
    assert bits.tolist() == [jax.random.bits(keys[i], (8,)).tolist() for i in (0, 2)]
    assert swapped.tolist() == jax.random.key_data(keys[np.array([1, 0, 3, 2])]).tolist()


def test_memory_that_was_never_written_is_poisoned_as_on_a_tpu() -> None:
    dtypes = [jnp.float32, jnp.int32, jnp.int8, jnp.bool_]

    def kernel(*refs: Any) -> None:
        del refs

    call = pl.pallas_call(kernel, out_shape=[jax.ShapeDtypeStruct((2,), each) for each in dtypes])
    floats, *others = simulate(call).values
    assert np.isnan(floats).all()
    assert [each.tolist() for each in others] == [[-(1 << 31)] * 2, [-128] * 2, [True] * 2]


def of_pallas_call(out: Any) -> Any:
    return pl.pallas_call(lambda o_ref: None, out_shape=out)()


def of_core(out: Any) -> Any:
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    return pl.kernel(lambda o_ref: None, out_type=out, mesh=mesh)()


def of_blocks(out: Any) -> Any:
    return plgpu.kernel(lambda o_ref: None, out_type=out)()


def of_reference(out: Any) -> Any:
    return jax.freeze(jax.empty_ref(out))


@pytest.mark.parametrize(
    ("function", "target"),
    [
        pytest.param(of_pallas_call, "v6e", id="tpu"),
        pytest.param(of_core, "v6e", id="core"),
        pytest.param(of_pallas_call, "h100", id="triton"),
        pytest.param(of_blocks, "h100", id="mosaic"),
        pytest.param(of_reference, "h100", id="reference"),
    ],
)
def test_an_output_that_nobody_writes_is_never_0(function: Any, target: str) -> None:
    """As on a chip, where it is whatever was there before."""
    names = "float32 bfloat16 float16 float8_e4m3fn float8_e5m2 float4_e2m1fn bool"
    names += " int2 int4 int8 int16 int32 uint2 uint4 uint8 uint16 uint32"
    for name in names.split():
        out = jax.ShapeDtypeStruct((8,), jnp.dtype(name))
        values = simulate(function, out=out, target=target).values
        assert (np.asarray(values).astype(np.float32) != 0).all(), name
