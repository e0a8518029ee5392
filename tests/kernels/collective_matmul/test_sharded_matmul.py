"""What ``sharded_matmul`` refuses, how its results are divided, and what it communicates."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from pallas_test_support.operands import f32, i32, normal, refuses
from pallas_test_support.several_devices import mesh_of

from reference_kernels.collective_matmul import sharded_matmul


def call(x: Any, y: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", "parallel": "rows", **options}
    return lambda: sharded_matmul(x, y, **options)


def test_misuse() -> None:
    x, y = f32(4, 6), f32(6, 8)
    refuses(call(x, y, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(x, y, parallel="cols"), "parallel must be one of rows, columns, sums", "'cols'")
    refuses(call(x, y, reduction="sum"), "reduction must be one of psum, all_reduce", "'sum'")
    refuses(call(f32(3, 6), y), "m must be a multiple of the 2 devices of the axis 'x'", "is 3")
    refuses(call(x, f32(6, 7), parallel="columns"), "n must be a multiple of the 2", "is 7")
    refuses(call(f32(4, 5), f32(5, 8), parallel="sums"), "k must be a multiple of the 2", "is 5")
    scattered = {"parallel": "sums", "reduction": "reduce_scatter"}
    refuses(call(f32(3, 6), y, **scattered), "m must be a multiple of the 2 devices", "is 3")
    refuses(call(i32(4, 6), y), "x must have a floating dtype", "int32")
    refuses(call(x, f32(5, 8)), "y must have the same k as x, 6", "is 5")


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"parallel": "rows"}, P("y", None)),
        ({"parallel": "columns"}, P(None, "y")),
        ({"parallel": "sums"}, P()),
        ({"parallel": "sums", "reduction": "all_reduce"}, P()),
        ({"parallel": "sums", "reduction": "reduce_scatter"}, P("y", None)),
    ],
    ids=str,
)
def test_how_the_result_is_divided(options: Any, spec: P) -> None:
    mesh = mesh_of(x=2, y=4)
    product = call(f32(8, 8), f32(8, 8), mesh=mesh, axis_name="y", **options)
    traced = jax.make_jaxpr(product)()
    (mapped,) = [eqn for eqn in traced.eqns if eqn.primitive.name == "shard_map"]
    assert mapped.params["out_specs"] == (spec,)


def collectives(function: Any, *args: Any) -> int:
    return str(jax.make_jaxpr(function)(*args)).count("psum")


@pytest.mark.parametrize(
    ("parallel", "forward", "backward"), [("rows", 0, 1), ("columns", 0, 1), ("sums", 1, 1)]
)
def test_only_what_must_be_is_added_over_the_devices(
    parallel: str, forward: int, backward: int
) -> None:
    def loss(x: Any, y: Any) -> Any:
        return call(x, y, parallel=parallel)().sum()

    x, y = f32(4, 8), f32(8, 4)
    assert collectives(call(x, y, parallel=parallel)) == forward
    # Of what every device had as a whole: y for rows, x for columns.
    added = collectives(jax.grad(loss, argnums=(0, 1)), x, y)
    assert added >= backward


@pytest.mark.pallas(backends=["tpu-sim"])
def test_two_layers_communicate_once(pallas_run: Any) -> None:
    mesh = mesh_of(x=4)
    x, w, v = normal(16, 32), normal(32, 64), normal(64, 32)

    def block(x: Any, w: Any, v: Any) -> Any:
        hidden = sharded_matmul(x, w, mesh=mesh, axis_name="x", parallel="columns")
        return sharded_matmul(
            hidden, v, mesh=mesh, axis_name="x", parallel="sums", reduction="all_reduce"
        )

    with jax.default_matmul_precision("float32"):
        wanted = np.asarray(x) @ np.asarray(w) @ np.asarray(v)
    np.testing.assert_allclose(pallas_run(block, x, w, v), wanted, rtol=1e-4, atol=1e-3)
    assert str(jax.make_jaxpr(block)(x, w, v)).count("collective_id=3") == 1
