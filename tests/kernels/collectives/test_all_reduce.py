"""What ``all_reduce`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.several_devices import (
    five_times,
    mesh_of,
    numbers,
    on_each,
    operations,
    same_bits,
)

from reference_kernels.collectives.all_reduce import all_reduce, all_reduce_on_mesh

LAX = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin, "mean": jax.lax.pmean}

PIECES = {"piece_bytes": 2**12}


def call(x: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: all_reduce_on_mesh(x, **options)


def test_misuse() -> None:
    x = f32(2, 3)
    refuses(call(x, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 4)), "x must have one shard for each of the 2 devices", "(3, 4)")
    refuses(call(f32(2, 0)), "x must not be empty", "(0,)")
    refuses(call(x, op="product"), "op must be one of sum, max, min, mean", "'product'")
    refuses(call(i32(2, 3), op="mean"), "x must have a floating dtype", "int32")
    refuses(call(x.astype(np.float16)), "x must be of dtype bfloat16, float32, int32", "float16")
    refuses(call(x, piece_bytes=-1), "piece_bytes must be a positive integer", "-1")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("axes", "axis_name", "op"),
    [
        ({"x": 8}, "x", "sum"),
        ({"x": 2, "y": 4}, "x", "mean"),
        ({"x": 2, "y": 4}, "y", "max"),
        ({"x": 2, "y": 3}, "y", "min"),
    ],
    ids=str,
)
def test_it_is_that_of_lax(pallas_run: Any, axes: Any, axis_name: str, op: Any) -> None:
    mesh = mesh_of(**axes)
    x = numbers(mesh.size, 3, 50) - 300
    theirs = on_each(lambda x: LAX[op](x, axis_name), mesh)(x)
    same_bits(pallas_run(all_reduce_on_mesh, x, mesh=mesh, axis_name=axis_name, op=op), theirs)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_scalars(pallas_run: Any) -> None:
    x = numbers(4, dtype=np.int32)
    ours = pallas_run(all_reduce_on_mesh, x, mesh=mesh_of(x=4), axis_name="x")
    same_bits(ours, np.full(4, 6, np.int32))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_all_devices_get_the_same_bits(pallas_run: Any) -> None:
    devices, rows = 4, 40
    x = np.random.default_rng(0).normal(size=(devices, devices * rows, 128)).astype(np.float32)
    ours = pallas_run(all_reduce_on_mesh, x, mesh=mesh_of(x=devices), axis_name="x", **PIECES)
    for other in ours[1:]:
        same_bits(other, ours[0])
    # And they are those of the order that is documented.
    for chunk in range(devices):
        for piece in range(rows // 8):
            forward, first = 1 - 2 * (piece % 2), chunk * rows + piece * 8
            parts = [x[(chunk + forward * n) % devices, first : first + 8] for n in range(1, 5)]
            same_bits(ours[0, first : first + 8], functools.reduce(np.add, parts))


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_nan_wins(pallas_run: Any, op: Any) -> None:
    x = np.ones((4, 200), np.float32)
    x[2, 7] = np.nan
    ours = pallas_run(all_reduce_on_mesh, x, mesh=mesh_of(x=4), axis_name="x", op=op)
    assert np.isnan(ours[:, 7]).all()
    assert np.isnan(ours).sum() == 4


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    x, mesh = numbers(4, 160, 128, dtype=np.int32), mesh_of(x=4)
    ours, theirs = (
        on_each(five_times(lambda x, total=total: total(x) % 1000 + x), mesh)
        for total in (
            functools.partial(all_reduce, axis_name="x", **PIECES),
            functools.partial(jax.lax.psum, axis_name="x"),
        )
    )
    same_bits(pallas_run(ours, x), theirs(x))


def test_a_single_device_sends_nothing() -> None:
    one = functools.partial(all_reduce_on_mesh, mesh=mesh_of(x=1), axis_name="x")
    found = {*operations(one, f32(1, 8, 128))}
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & found


@pytest.mark.parametrize("target", ["v5e", "v5p"])
def test_eight_chips(pallas_compile: Any, target: str) -> None:
    x = jax.ShapeDtypeStruct((8, 4096, 2048), jnp.bfloat16)
    options = {"mesh": mesh_of(x=8), "axis_name": "x"}
    report = pallas_compile(all_reduce_on_mesh, x, target=target, options=options)
    assert report.vmem_bytes < 8 * 2**20
