"""Warps of a warpgroup, JAX's pipelines and loops, views of images, unions, and multimem."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from pallas_sim import simulate

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
SEEDS = [0, 1, 2, 3]


def kernel(body: Any, *scratch: Any, shape: Any = (64, 128), **more: Any) -> Any:
    def function(*arrays):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
            scratch_types=list(scratch),
            **more,
        )(*arrays)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [True, False])
def test_a_warp_copies_and_another_one_tells(seed, waits):
    def body(x_gmem, o_gmem, buffer, arrived):
        @plgpu.warp_map
        def _per_warp(warp):
            @pl.when(warp == 1)
            def _copy():
                plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)

        if waits:
            plgpu.barrier_wait(arrived)
        o_gmem[...] = buffer[...] + 1

    buffer = plgpu.SMEM((64, 128), jnp.float32)
    found = simulate(kernel(body, buffer, plgpu.Barrier()), X, target="h100", seed=seed)
    if waits:
        np.testing.assert_array_equal(found.values, X + 1)
        assert kinds(found) == []
    else:
        assert "race" in kinds(found)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_pipeline(seed, stages):
    def body(x_gmem, o_gmem):
        def add(_, x_smem, o_smem):
            o_smem[...] = x_smem[...] + 1

        block = plgpu.BlockSpec((16, 128), lambda i: (i, 0))
        plgpu.emit_pipeline(
            add, grid=(4,), in_specs=[block], out_specs=[block], max_concurrent_steps=stages
        )(x_gmem, o_gmem)

    found = simulate(kernel(body), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X + 1)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pipeline_with_a_warpgroup_that_copies(seed):
    def body(x_gmem, o_gmem):
        def add(indices, x_smem):
            rows = pl.ds(jax.lax.axis_index("wg") * 8, 8)
            o_gmem[pl.ds(indices[0] * 16 + jax.lax.axis_index("wg") * 8, 8)] = x_smem[rows] + 1

        plgpu.emit_pipeline_warp_specialized(
            add,
            grid=(4,),
            in_specs=[plgpu.BlockSpec((16, 128), lambda i: (i, 0))],
            max_concurrent_steps=2,
            num_compute_wgs=2,
            memory_registers=40,
            wg_axis="wg",
        )(x_gmem)

    function = kernel(body, num_threads=3, thread_name="wg")
    found = simulate(function, X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X + 1)
    assert kinds(found) == []


@pytest.mark.parametrize(("apart", "same"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("writes", [False, True])
def test_a_store_to_an_inputs_window_of_a_pipeline(apart, writes, same):
    """Each step fetches its block anew, also the same one."""

    def add(_, x_smem, o_smem):
        if writes:
            x_smem[...] = x_smem[...] * 2
        o_smem[...] = x_smem[...] + 1

    def body(x_gmem, o_gmem):
        block = plgpu.BlockSpec((16, 128), lambda i: (i, 0))
        source = plgpu.BlockSpec((16, 128), lambda i: (0, 0)) if same else block
        specs = {"grid": (4,), "in_specs": [source], "out_specs": [block]}
        specs["max_concurrent_steps"] = 2
        if not apart:
            plgpu.emit_pipeline(add, **specs)(x_gmem, o_gmem)
            return
        specs |= {"num_compute_wgs": 1, "memory_registers": 40, "wg_axis": "wg"}
        plgpu.emit_pipeline_warp_specialized(add, **specs)(x_gmem, o_gmem)

    threads = {"num_threads": 2, "thread_name": "wg"} if apart else {}
    found = simulate(kernel(body, **threads), X, target="h100")
    value = X.reshape(4, 16, 128)[[0] * 4].reshape(X.shape) if same else X
    np.testing.assert_array_equal(found.values, value * (2 if writes else 1) + 1)
    assert ("input-write" in kinds(found)) == writes
    if writes:
        finding = next(f for f in found.findings if f.kind == "input-write")
        assert "the window of the input x_gmem" in finding.message
        assert finding.dropped
        assert "test_kernels_as_traced.py" in finding.line


def test_a_loop_that_blocks_share():
    def body(x_gmem, o_gmem):
        @plgpu.nd_loop((8, 2), collective_axes="block")
        def _step(info):
            i, j = info.index
            part = (pl.ds(i * 8, 8), pl.ds(j * 64, 64))
            o_gmem[part] = x_gmem[part] * 2

    function = kernel(body, grid=(3,), grid_names=("block",))
    found = simulate(function, X, target="h100", seed=1)
    np.testing.assert_array_equal(found.values, 2 * X)
    assert kinds(found) == []


@pytest.mark.skipif(not hasattr(plgpu, "im2col_ref"), reason="JAX 0.11.2 has none")
def test_windows_of_an_image():
    image = np.random.default_rng(0).normal(size=(2, 6, 8, 64)).astype(np.float32)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))

    def body(x_gmem, o_gmem, buffer, arrived):
        view = plgpu.im2col_ref(x_gmem, window_shape=(3, 3), padding=((1, 1), (1, 1)))
        plgpu.copy_gmem_to_smem(view.at[pl.ds(32, 64), 2, 0, pl.ds(0, 64)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    buffer = plgpu.SMEM((64, 64), jnp.float32)
    function = kernel(body, buffer, plgpu.Barrier(), shape=(64, 64))
    found = simulate(function, image, target="h100")
    every = padded[:, 2:8, 0:8].reshape(96, 64)
    np.testing.assert_array_equal(found.values, every[32:])
    assert kinds(found) == []


def test_alternatives_in_the_same_memory():
    def body(x_gmem, o_gmem, union, arrived):
        wide, (narrow, rest) = union
        plgpu.copy_gmem_to_smem(x_gmem, wide, arrived)
        plgpu.barrier_wait(arrived)
        part = wide[pl.ds(0, 32)]
        narrow[...] = part.astype(jnp.bfloat16)
        rest[...] = part
        o_gmem[pl.ds(0, 32)] = narrow[...].astype(jnp.float32)
        o_gmem[pl.ds(32, 32)] = rest[...]

    union = plgpu.RefUnion(
        plgpu.SMEM((64, 128), jnp.float32),
        (plgpu.SMEM((32, 128), jnp.bfloat16), plgpu.SMEM((32, 128), jnp.float32)),
    )
    found = simulate(kernel(body, union, plgpu.Barrier()), X, target="h100")
    expected = X[:32].astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found.values, np.concatenate([expected, X[:32]]))
    assert kinds(found) == []


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.float4_e2m1fn])
@pytest.mark.parametrize("half", ["low", "high"])
@pytest.mark.parametrize("row", [0, 4])
def test_elements_of_four_bits_share_memory_with_wider_ones(row, half, dtype):
    """Four rows of float32 take as many bytes as 32 rows of 4 bits."""

    def body(x_gmem, n_gmem, o_gmem, union, arrived, again):
        (low, high), wide = union
        narrow = low if half == "low" else high
        plgpu.copy_gmem_to_smem(n_gmem, narrow, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_gmem_to_smem(x_gmem, wide.at[pl.ds(row, 4)], again)
        o_gmem[...] = narrow[...].astype(jnp.float32)
        plgpu.barrier_wait(again)

    nibbles = plgpu.SMEM((32, 128), dtype)
    union = plgpu.RefUnion((nibbles, nibbles), plgpu.SMEM((8, 128), jnp.float32))
    run = kernel(body, union, plgpu.Barrier(), plgpu.Barrier(), shape=(32, 128))
    values = (np.arange(32 * 128) % 4).reshape(32, 128)
    found = simulate(run, X[:4], values.astype(dtype), target="h100")
    same = (row == 0) == (half == "low")
    assert {*kinds(found)} == ({"race"} if same else set())
    np.testing.assert_array_equal(found.values, values)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_devices_at_once(seed):
    def on_device(x):
        def body(x_gmem, sum_gmem, all_gmem, met):
            me = jax.lax.axis_index("x")
            sum_gmem[...] = plgpu.multimem_load_reduce(
                x_gmem, collective_axes="x", reduction_op="add"
            )
            plgpu.multimem_store(x_gmem[...], all_gmem.at[me], collective_axes="x")
            plgpu.semaphore_signal_multicast(met, collective_axes="x")
            pl.semaphore_wait(met, 4)

        part = jax.ShapeDtypeStruct((16, 128), jnp.float32)
        return plgpu.kernel(
            body,
            out_type=(part, jax.ShapeDtypeStruct((4, 16, 128), jnp.float32)),
            scratch_types=[plgpu.SemaphoreType.REGULAR],
        )(x)

    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    function = jax.shard_map(
        on_device, mesh=mesh, in_specs=spec, out_specs=(spec, spec), check_vma=False
    )
    found = simulate(function, X, target="h100", seed=seed)
    total, gathered = found.values
    np.testing.assert_array_equal(total[:16], X.reshape(4, 16, 128).sum(axis=0))
    np.testing.assert_array_equal(gathered[:4].reshape(64, 128), X)
    assert kinds(found) == []
