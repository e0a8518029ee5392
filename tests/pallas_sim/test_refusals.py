"""Kernels that no chip runs, because JAX or Mosaic refuses them."""

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
from jax.experimental.pallas import tpu_sc as plsc

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def kernel(compute: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    return lambda x: pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))(x)


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x: jnp.cumsum(x, axis=0), "cumsum"),
        (lambda x: jnp.sort(x, axis=0), "sort"),
        (lambda x: lax.fori_loop(0, 2, lambda _, y: lax.rev(y, (0,)), x), "rev"),
        (jax.checkpoint(lambda x: x + 1), "remat2"),
        (lambda x: jnp.real(lax.complex(x, x)), "complex64"),
    ],
    ids=["cumsum", "sort", "in a loop", "checkpoint", "complex"],
)
def test_an_operation_without_a_lowering(compute: Any, name: str) -> None:
    with pytest.raises(SimulationError, match=name) as refused:
        simulate(kernel(compute), X, target="v6e")
    assert "test_refusals.py" in str(refused.value)


def test_the_line_of_the_kernel_that_calls_a_function_of_jax() -> None:
    """JAX traces such a function once, for the line that calls it first."""
    simulate(lambda x: jnp.cumsum(x, axis=1), X)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        o_ref[...] = jnp.cumsum(x_ref[...], axis=1)

    with pytest.raises(SimulationError) as refused:
        simulate(lambda x: pl.pallas_call(body, out_shape=x)(x), X, target="v6e")
    assert refused.value.line.endswith(f":{body.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: lax.platform_dependent(x, tpu=lambda x: x, default=lambda x: jnp.cumsum(x, 0)),
        lambda x: lax.cond(False, lambda x: jnp.cumsum(x, 0), lambda x: x, x),
        lambda x: x + jnp.where(x > 1, jnp.sum(x, axis=0), 0),
    ],
    ids=["for another platform", "not taken", "all lowered"],
)
def test_what_is_lowered(compute: Any) -> None:
    assert not simulate(kernel(compute), X, target="v6e").findings


def test_a_portable_kernel_may_be_for_a_gpu_unless_a_tpu_is_named() -> None:
    def body(x_ref: Any, o_ref: Any, *_: Any) -> None:
        o_ref[...] = jnp.cumsum(x_ref[...], axis=0)

    assert not simulate(lambda x: pl.pallas_call(body, out_shape=x)(x), X).findings
    scratch = [pltpu.VMEM((8, 128), jnp.float32)]  # which only a TPU has
    with pytest.raises(SimulationError, match="does not lower cumsum"):
        simulate(lambda x: pl.pallas_call(body, out_shape=x, scratch_shapes=scratch)(x), X)


@pytest.mark.parametrize("space", [pl.ANY, pltpu.VMEM])
def test_complex_arrays(space: Any) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    spec = pl.BlockSpec(memory_space=space)
    with pytest.raises(SimulationError, match=r"complex64 \[8, 128\]: a kernel on a TPU has no"):
        simulate(
            lambda x: pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)(x),
            X.astype(np.complex64),
        )


def test_an_operation_that_only_other_cores_have() -> None:
    def body(x_ref: Any, o_ref: Any, rows: Any) -> None:
        pltpu.sync_copy(x_ref, rows)
        rows[0, pl.ds(0, 16)] = pltpu.load(rows.at[0, pl.ds(0, 16)], mask=jnp.arange(16) > 3)
        pltpu.sync_copy(rows, o_ref)

    def call(x: Any) -> Any:
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
        )
        rows = pltpu.VMEM(x.shape, x.dtype)
        return pl.kernel(body, out_type=x, mesh=mesh, scratch_types=[rows])(x)

    with pytest.raises(SimulationError, match="does not lower masked_load for a vector subcore"):
        simulate(call, X, target="v5p")


@pytest.mark.parametrize(
    ("dtype", "compute", "message"),
    [
        ("float16", lambda x: x, "no TPU computes with float16"),
        ("float32", lambda x: x.astype(jnp.float16), "no TPU computes with float16"),
        ("int8", lambda x: x + x, "computes add of int8: convert to 32 bits"),
        ("uint8", lambda x: x * x, "computes mul of uint8"),
        ("int4", lambda x: x - (x << 1), "computes sub of int4"),
        ("float8_e4m3fn", lambda x: jnp.exp(x), "computes exp of float8_e4m3fn"),
        ("float8_e5m2", lambda x: x < x, "computes lt of float8_e5m2"),
        ("bfloat16", lambda x: x % 3, "computes rem of bfloat16"),
        ("uint32", lambda x: jnp.sum(x, axis=0), "computes reduce_sum of uint32"),
        ("int16", lambda x: jnp.max(x, axis=0), "computes reduce_max of int16"),
        ("int32", lambda x: jnp.argmax(x, axis=0), "computes argmax of int32"),
        ("bfloat16", lambda x: jnp.dot(x, x.T), "a product with sums of bfloat16"),
        ("int32", lambda x: jnp.dot(x, x.T), "computes dot_general of int32"),
        ("bfloat16", lambda x: x[0, 0] * x, "an element of bfloat16 as a scalar"),
        ("float32", lambda x: x[::2], "a slice of a value with a stride"),
        ("float32", lambda x: lax.scan(lambda s, row: (s + row, None), x[0], x)[0], "a scan over"),
    ],
)
def test_dtypes_that_no_tensor_core_computes_with(dtype: str, compute: Any, message: str) -> None:
    """``tpu-compile`` refuses each of them, for every TPU."""
    x = np.ones((8, 128), dtype)
    out = jax.eval_shape(compute, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    with pytest.raises(SimulationError, match=message):
        simulate(lambda x: pl.pallas_call(body, out_shape=out)(x), x, target="v6e")


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [
        ("int8", lambda x: x.astype(jnp.int32) + 1),
        ("int8", lambda x: (x << 1) & x),
        ("float8_e5m2", lambda x: jnp.concatenate([x, x])),
        ("bfloat16", lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.float32)),
        ("int8", lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.int32)),
        ("uint32", lambda x: jnp.maximum(x, x) + x),
        ("float32", lambda x: lax.fori_loop(0, 3, lambda i, y: y + x, x)),
        ("bool", lambda x: jnp.where(x, 1, 2)),
    ],
)
def test_dtypes_that_a_tensor_core_computes_with(dtype: str, compute: Any) -> None:
    x = np.ones((8, 128), dtype)
    out = jax.eval_shape(compute, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    found = simulate(lambda x: pl.pallas_call(body, out_shape=out)(x), x, target="v6e")
    np.testing.assert_array_equal(found.values, compute(jnp.asarray(x)))


def test_float16_that_is_only_copied() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    spec, x = pl.BlockSpec(memory_space=pl.ANY), np.ones((8, 128), np.float16)
    call = pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)
    np.testing.assert_array_equal(simulate(call, x).values, x)


@pytest.mark.parametrize(
    ("warp", "message"),
    [(False, "does not lower cumsum for a warpgroup"), (True, "does not lower cumsum for a warp,")],
)
def test_an_operation_that_mosaic_gpu_does_not_lower(warp: bool, message: str) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        def add() -> None:
            o_ref[...] = jnp.cumsum(x_ref[...])

        if not warp:
            add()
            return

        @plgpu.warp_map
        def _by_warp(number: Any) -> None:
            pl.when(number == 0)(add)

    out = jax.ShapeDtypeStruct((128,), jnp.float32)
    with pytest.raises(SimulationError, match=message):
        simulate(plgpu.kernel(body, out_type=out), X[0])


def test_scratch_of_a_kernel_on_a_mesh_of_blocks() -> None:
    def body(x_ref: Any, o_ref: Any, scratch: Any) -> None:
        scratch[...] = x_ref[...]
        o_ref[...] = scratch[...]

    def call(x: Any) -> Any:
        mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        scratch = plgpu.SMEM(x.shape, x.dtype)
        return pl.kernel(body, out_type=out, mesh=mesh, scratch_types=[scratch])(x)

    with pytest.raises(SimulationError, match=r"call plgpu\.kernel, which takes them"):
        simulate(call, X[0])
