"""What ``matmul_reduce_scatter`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.machine_code import bundles_of, places
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.several_devices import (
    five_times,
    mesh_of,
    numbers,
    on_each,
    operations,
    same_bits,
)

from reference_kernels.collective_matmul.matmul_reduce_scatter import (
    matmul_reduce_scatter,
    matmul_reduce_scatter_on_mesh,
)

BLOCKS = {"block_m": 16, "block_n": 128, "block_k": 128}


def call(x: Any, w: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: matmul_reduce_scatter_on_mesh(x, w, **options)


def test_misuse() -> None:
    x, w = f32(2, 6, 4), f32(2, 4, 5)
    refuses(call(x, w, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 6, 4), w), "x must have one shard for each of the 2 devices", "(3, 6, 4)")
    refuses(call(f32(2, 5, 4), w), "x must have rows that the 2 devices", "'x'", "(5, 4)")
    refuses(call(x, f32(2, 5, 5)), "w must have the same k as x, 4", "is 5")
    refuses(call(x, f32(2, 4)), "w must have the shape (k, n)", "(4,)")
    refuses(call(i32(2, 6, 4), w), "x must have a floating dtype", "int32")
    refuses(call(x, w.astype(np.float16)), "w must have the dtype of x", "float16")
    refuses(call(x, f32(2, 4, 0)), "w must not be empty", "(4, 0)")
    refuses(call(x, w, block_m=-8), "block_m must be a positive integer", "-8")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("axes", "axis_name"),
    [({"x": 8}, "x"), ({"x": 2, "y": 4}, "x"), ({"x": 2, "y": 3}, "y")],
    ids=str,
)
def test_it_is_that_of_lax(pallas_run: Any, axes: Any, axis_name: str) -> None:
    mesh = mesh_of(**axes)
    x = numbers(mesh.size, axes[axis_name] * 17, 5) % 7
    w = numbers(mesh.size, 5, 3) % 5
    ours = pallas_run(matmul_reduce_scatter_on_mesh, x, w, mesh=mesh, axis_name=axis_name)
    scatter = on_each(lambda x: jax.lax.psum_scatter(x, axis_name, tiled=True), mesh)
    same_bits(ours, scatter(np.matmul(x, w)))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_floats_are_added_in_the_order_of_the_ring(pallas_run: Any) -> None:
    # One term in each sum of a device, so that the products are exact and only the ring rounds.
    rng = np.random.default_rng(0)
    devices, rows = 4, 48
    x = rng.normal(size=(devices, devices * rows, 1)).astype(np.float32)
    w = np.ones((devices, 1, 128), np.float32)
    ours = pallas_run(
        matmul_reduce_scatter_on_mesh, x, w, mesh=mesh_of(x=devices), axis_name="x", **BLOCKS
    )
    for chunk in range(devices):
        for block in range(rows // 16):
            forward, first = 1 - 2 * (block % 2), block * 16
            from_ = chunk * rows + first
            parts = [x[(chunk + forward * n) % devices, from_ : from_ + 16] for n in range(1, 5)]
            total = functools.reduce(np.add, parts)
            same_bits(ours[chunk, first : first + 16], np.broadcast_to(total, (16, 128)))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    w = (numbers(128, 128) % 3 - 1).astype(np.float32)

    def step(x: jax.Array, product: Any) -> jax.Array:
        return (jnp.tile(product(x), (4, 1)) + x) % 64

    ours = functools.partial(matmul_reduce_scatter, w=w, axis_name="x", **BLOCKS)
    x, mesh = numbers(4, 4 * 32, 128) % 5, mesh_of(x=4)

    def theirs(x: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(jnp.matmul(x, w), "x", tiled=True)

    got = pallas_run(on_each(five_times(lambda x: step(x, ours)), mesh), x)
    same_bits(got, on_each(five_times(lambda x: step(x, theirs)), mesh)(x))


def traced(devices: int) -> list[str]:
    product = functools.partial(
        matmul_reduce_scatter_on_mesh, mesh=mesh_of(x=devices), axis_name="x", **BLOCKS
    )
    return operations(product, f32(devices, devices * 64, 256), f32(devices, 256, 256))


def test_a_single_device_sends_nothing() -> None:
    found = {*traced(1)}
    assert "dot_general" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & found


def test_nobody_waits_for_a_block_between_its_products() -> None:
    found = traced(4)
    product = found.index("dot_general")
    # Before the product: what arrived one turn ago, whose copy into VMEM is started.
    assert [each for each in found[:product] if each.startswith("dma")] == ["dma_wait", "dma_start"]
    # After it: the slot that was sent two blocks ago, and that copy; a block leaves after both.
    assert product < found.index("send")
    assert found[product : found.index("send")].count("dma_wait") == 2


@pytest.mark.parametrize("target", ["v6e", pytest.param("v5e", marks=pytest.mark.slow)])
def test_in_the_machine_code_too(target: str) -> None:
    product = functools.partial(matmul_reduce_scatter_on_mesh, mesh=mesh_of(x=4), axis_name="x")
    shapes = (4, 4 * 1024, 1024), (4, 1024, 1024)
    bundles = bundles_of(
        product, *(jax.ShapeDtypeStruct(each, "bfloat16") for each in shapes), target=target
    )
    products = places(bundles, "vmatmul")
    sends, waits = places(bundles, "dma.general"), places(bundles, "dma.done.wait")
    assert sends
    assert max(products) < min(sends)
    assert not [wait for wait in waits if min(products) < wait < max(products)]


@pytest.mark.parametrize("target", ["v5e", pytest.param("v4", marks=pytest.mark.slow)])
def test_eight_chips(pallas_compile: Any, target: str) -> None:
    shapes = (8, 8 * 1024, 1024), (8, 1024, 4096)
    report = pallas_compile(
        matmul_reduce_scatter_on_mesh,
        *(jax.ShapeDtypeStruct(each, "bfloat16") for each in shapes),
        target=target,
        options={"mesh": mesh_of(x=8), "axis_name": "x"},
    )
    assert report.vmem_bytes < 16 * 2**20
