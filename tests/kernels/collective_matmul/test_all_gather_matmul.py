"""What ``all_gather_matmul`` refuses, and what it promises beyond what its spec draws."""

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

from reference_kernels.collective_matmul.all_gather_matmul import (
    all_gather_matmul,
    all_gather_matmul_on_mesh,
)

BLOCKS = {"block_m": 16, "block_n": 128, "block_k": 128}


def call(x: Any, w: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: all_gather_matmul_on_mesh(x, w, **options)


def test_misuse() -> None:
    x, w = f32(2, 3, 4), f32(2, 4, 5)
    refuses(call(x, w, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 3, 4), w), "x must have one shard for each of the 2 devices", "(3, 3, 4)")
    refuses(call(x, f32(4, 4, 5)), "w must have one shard for each of the 2 devices", "(4, 4, 5)")
    refuses(call(f32(2, 3), w), "x must have the shape (rows, k)", "(3,)")
    refuses(call(x, f32(2, 5, 5)), "w must have the same k as x, 4", "is 5")
    refuses(call(i32(2, 3, 4), w), "x must have a floating dtype", "int32")
    refuses(call(x, w.astype(np.float16)), "w must have the dtype of x", "float16")
    refuses(call(f32(2, 0, 4), w), "x must not be empty", "(0, 4)")
    refuses(call(x, w, block_k=0), "block_k must be a positive integer", "0")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("axes", "axis_name"),
    [({"x": 8}, "x"), ({"x": 2, "y": 4}, "x"), ({"x": 2, "y": 3}, "y")],
    ids=str,
)
def test_it_is_that_of_lax(pallas_run: Any, axes: Any, axis_name: str) -> None:
    mesh = mesh_of(**axes)
    x, w = numbers(mesh.size, 17, 5) % 7, numbers(mesh.size, 5, 3) % 5
    ours = pallas_run(all_gather_matmul_on_mesh, x, w, mesh=mesh, axis_name=axis_name)
    rows = on_each(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), mesh)(x)
    same_bits(ours, np.matmul(rows, w))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    w = (numbers(128, 128) % 3 - 1).astype(np.float32)

    def step(x: jax.Array, product: Any) -> jax.Array:
        rows = product(x).reshape(4, *x.shape)
        return (rows[0] + 2 * rows[3] + x) % 64

    ours = functools.partial(all_gather_matmul, w=w, axis_name="x", **BLOCKS)
    x, mesh = numbers(4, 32, 128) % 5, mesh_of(x=4)

    def theirs(x: jax.Array) -> jax.Array:
        return jnp.matmul(jax.lax.all_gather(x, "x", tiled=True), w)

    got = pallas_run(on_each(five_times(lambda x: step(x, ours)), mesh), x)
    same_bits(got, on_each(five_times(lambda x: step(x, theirs)), mesh)(x))


def traced(devices: int) -> list[str]:
    product = functools.partial(
        all_gather_matmul_on_mesh, mesh=mesh_of(x=devices), axis_name="x", **BLOCKS
    )
    return operations(product, f32(devices, 64, 256), f32(devices, 256, 256))


def test_a_single_device_sends_nothing() -> None:
    found = {*traced(1)}
    assert "dot_general" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & found


def test_rows_leave_before_they_are_multiplied() -> None:
    found = traced(4)
    sends = [place for place, name in enumerate(found) if name == "send"]
    assert len(sends) == 4  # from x or from what arrived, in two directions
    assert max(sends) < found.index("dot_general")
    # After them there is one wait: for a block of x, and not for what was sent.
    assert found[max(sends) :].count("dma_wait") == 1


@pytest.mark.parametrize("target", ["v6e", pytest.param("v5e", marks=pytest.mark.slow)])
def test_in_the_machine_code_too(target: str) -> None:
    product = functools.partial(all_gather_matmul_on_mesh, mesh=mesh_of(x=4), axis_name="x")
    shapes = (4, 512, 1024), (4, 1024, 1024)
    bundles = bundles_of(
        product, *(jax.ShapeDtypeStruct(each, "bfloat16") for each in shapes), target=target
    )
    sends, products = places(bundles, "dma.general"), places(bundles, "vmatmul")
    assert len(sends) == 4
    assert max(sends) < min(products)


@pytest.mark.parametrize("target", ["v5e", pytest.param("v4", marks=pytest.mark.slow)])
def test_eight_chips(pallas_compile: Any, target: str) -> None:
    shapes = (8, 1024, 4096), (8, 4096, 1024)
    report = pallas_compile(
        all_gather_matmul_on_mesh,
        *(jax.ShapeDtypeStruct(each, "bfloat16") for each in shapes),
        target=target,
        options={"mesh": mesh_of(x=8), "axis_name": "x"},
    )
    assert report.vmem_bytes < 16 * 2**20
