"""What ``reduce_scatter`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses
from pallas_test_support.several_devices import (
    five_times,
    mesh_of,
    numbers,
    on_each,
    operations,
    same_bits,
)

from reference_kernels.collectives.reduce_scatter import reduce_scatter, reduce_scatter_on_mesh

#: Rows of a chunk of float32 of 128 columns, in pieces of one tile: two groups of four lanes.
PIECES = {"piece_bytes": 2**12}
ROWS = 40


def call(x: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: reduce_scatter_on_mesh(x, **options)


def test_misuse() -> None:
    x = f32(2, 2, 3)
    refuses(call(x, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 4)), "x must have one shard for each of the 2 devices", "(3, 4)")
    refuses(call(f32(2, 2, 0)), "x must not be empty", "(2, 0)")
    refuses(call(f32(2, 3)), "x must have one chunk for each of the 2 devices", "'x'", "(3,)")
    refuses(call(f32(2, 3), tiled=True), "that the 2 devices of the axis 'x' divide", "(3,)")
    refuses(call(x, scatter_dimension=2), "scatter_dimension must be a dimension of x", "is 2")
    refuses(call(x.astype(np.int8)), "x must be of dtype bfloat16, float32, int32", "int8")
    refuses(call(x, piece_bytes=0), "piece_bytes must be a positive integer", "0")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("axes", "axis_name", "dtype"),
    [
        ({"x": 8}, "x", "int32"),
        ({"x": 2, "y": 4}, "x", "float32"),
        ({"x": 4, "y": 2}, "x", "int32"),
    ],
    ids=str,
)
def test_it_is_that_of_lax(pallas_run: Any, axes: Any, axis_name: str, dtype: str) -> None:
    mesh, size = mesh_of(**axes), axes[axis_name]
    x = numbers(8, 3, size * 5, 7, dtype=dtype)
    where = {"scatter_dimension": 1, "tiled": True}
    theirs = on_each(lambda x: jax.lax.psum_scatter(x, axis_name, **where), mesh)(x)
    ours = pallas_run(reduce_scatter_on_mesh, x, mesh=mesh, axis_name=axis_name, **where)
    same_bits(ours, theirs)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_scalars(pallas_run: Any) -> None:
    x = numbers(4, 4, dtype=np.int32)
    ours = pallas_run(reduce_scatter_on_mesh, x, mesh=mesh_of(x=4), axis_name="x")
    same_bits(ours, x.sum(0, dtype=np.int32))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_floats_are_added_in_the_order_of_the_ring(pallas_run: Any) -> None:
    devices = 4
    rng = np.random.default_rng(0)
    x = rng.normal(size=(devices, devices * ROWS, 128)).astype(np.float32)
    ours = pallas_run(
        reduce_scatter_on_mesh, x, mesh=mesh_of(x=devices), axis_name="x", tiled=True, **PIECES
    )
    chunks = x.reshape(devices, devices, ROWS, 128)
    for chunk in range(devices):
        for first_row in range(0, ROWS, 8):
            forward = 1 if first_row // 8 % 2 == 0 else -1
            rows = slice(first_row, first_row + 8)
            parts = [
                chunks[(chunk + forward * n) % devices, chunk, rows] for n in range(1, devices + 1)
            ]
            same_bits(ours[chunk, rows], functools.reduce(np.add, parts))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_partial_sums_of_bfloat16_are_not_rounded(pallas_run: Any) -> None:
    # 256 + 1 is 256 in bfloat16, however often one is added.
    x = jnp.ones((4, 4, 8), jnp.bfloat16).at[:, :, 0].set(jnp.array([256, 1, 1, 0])[:, None])
    ours = pallas_run(reduce_scatter_on_mesh, x, mesh=mesh_of(x=4), axis_name="x")
    assert (ours[:, 0] == 258).all()


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    def step(x: jax.Array) -> jax.Array:
        part = reduce_scatter(x, "x", tiled=True, **PIECES)
        return jnp.tile(part, (4, 1)) % 1000

    def lax_step(x: jax.Array) -> jax.Array:
        return jnp.tile(jax.lax.psum_scatter(x, "x", tiled=True), (4, 1)) % 1000

    x, mesh = numbers(4, 4 * ROWS, 128, dtype=np.int32), mesh_of(x=4)
    same_bits(
        pallas_run(on_each(five_times(step), mesh), x), on_each(five_times(lax_step), mesh)(x)
    )


def test_a_single_device_sends_nothing() -> None:
    one = functools.partial(reduce_scatter_on_mesh, mesh=mesh_of(x=1), axis_name="x", tiled=True)
    found = {*operations(one, f32(1, 8, 128))}
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & found


@pytest.mark.parametrize("target", ["v5e", "v5p"])
def test_eight_chips(pallas_compile: Any, target: str) -> None:
    x = jax.ShapeDtypeStruct((8, 8 * 512, 2048), "bfloat16")
    options = {"mesh": mesh_of(x=8), "axis_name": "x", "tiled": True}
    report = pallas_compile(reduce_scatter_on_mesh, x, target=target, options=options)
    assert report.vmem_bytes < 8 * 2**20
