"""Meshes of which a function divides some axes, and collectives that XLA's CPU does not have."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

AUTO = AxisType.Auto
ABSTRACT = AbstractMesh((2, 4), ("x", "y"), axis_types=(AUTO, AUTO))


def nested(inner: Any, mesh: Any, *, outer: str = "x") -> Any:
    """``inner`` on the devices of both axes, of which the outer function divides one."""
    (other,) = {"x", "y"} - {outer}

    def around(x):
        doubled = 2 * x
        spec = P(None, other) if other == "y" else P(other, None)
        divided = jax.shard_map(
            inner, in_specs=spec, out_specs=spec, axis_names={other}, check_vma=False
        )
        return divided(doubled) + lax.axis_index(outer)

    spec = P("x", None) if outer == "x" else P(None, "y")
    return jax.shard_map(
        around, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={outer}, check_vma=False
    )


def table() -> np.ndarray[Any, Any]:
    return np.arange(16 * 512, dtype=np.float32).reshape(16, 512)


@pytest.mark.parametrize("outer", ["x", "y"])
def test_one_inside_of_another_as_xla_does_it(outer):
    if len(jax.devices()) < 8:
        pytest.skip("8 devices are needed")
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"), axis_types=(AUTO, AUTO))
    inner_axis = "y" if outer == "x" else "x"

    def inner(x):
        size = lax.axis_size(inner_axis)
        turned = lax.ppermute(x, inner_axis, [(i, (i + 1) % size) for i in range(size)])
        return turned + 1000 * lax.axis_index(inner_axis) + lax.psum(x[:1, :1], inner_axis)

    function = nested(inner, mesh, outer=outer)
    expected = np.asarray(jax.jit(function)(table()))
    np.testing.assert_array_equal(simulate(function, table()).values, expected)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_kernel_inside_reaches_devices_of_the_whole_mesh(seed):
    def body(x_ref, o_ref, sent, received):
        x, y = lax.axis_index("x"), lax.axis_index("y")
        pltpu.async_remote_copy(
            x_ref, o_ref, sent, received, device_id=(x, lax.rem(y + 1, 4))
        ).wait()

    def inner(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        )(x)

    found = simulate(nested(inner, ABSTRACT), table(), seed=seed)
    assert not found.findings
    expected = np.roll(2 * table(), 128, axis=1) + np.repeat([0, 1], 8)[:, None]
    np.testing.assert_array_equal(found.values, expected.astype(np.float32))


def ragged(*operands: Any, devices: int = 2, **options: Any) -> Any:
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AUTO,))

    def each(*parts):
        rows = [part[0] for part in parts]
        return lax.ragged_all_to_all(*rows, axis_name="x", **options)[None]

    function = jax.shard_map(each, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return simulate(function, *map(np.array, operands)).values


#: The example of its documentation.
EXAMPLE = {
    "operand": [[1, 2, 2], [3, 4, 0]],
    "output": np.zeros((2, 4), np.int32),
    "input_offsets": [[0, 1], [0, 1]],
    "send_sizes": [[1, 2], [1, 1]],
    "output_offsets": [[0, 0], [1, 2]],
    "recv_sizes": [[1, 1], [2, 1]],
}


def test_a_ragged_all_to_all():
    np.testing.assert_array_equal(ragged(*EXAMPLE.values()), [[1, 3, 0, 0], [2, 2, 4, 0]])


def test_several_runs_for_each_device_and_rows_that_nobody_writes():
    rng = np.random.default_rng(0)
    devices, runs = 3, 2
    count = devices * runs
    sizes = rng.integers(0, 4, (devices, count))  # by sender: of each run
    starts = rng.integers(0, 6, (devices, count))
    operand = rng.integers(1, 99, (devices, 10, 2)).astype(np.int32)
    output = -np.ones((devices, 3 * count, 2), np.int32)
    slots = 3 * np.arange(count).reshape(devices, runs)  # by sender, of each receiver's output
    places = np.tile(slots[:, None], (1, devices, 1)).reshape(devices, count)
    received = sizes.reshape(devices, devices, runs).swapaxes(0, 1).reshape(devices, count)
    expected = output.copy()
    for sender in range(devices):
        for number in range(count):
            size, start = sizes[sender, number], starts[sender, number]
            place = places[sender, number]
            expected[number // runs, place : place + size] = operand[sender, start : start + size]
    integers = (each.astype(np.int32) for each in (starts, sizes, places, received))
    got = ragged(operand, output, *integers, devices=devices)
    np.testing.assert_array_equal(got, expected)


def test_groups_of_a_ragged_all_to_all():
    twice = {name: np.concatenate([value, value]) for name, value in EXAMPLE.items()}
    twice["operand"][2:] *= 10
    got = ragged(*twice.values(), devices=4, axis_index_groups=[[0, 1], [2, 3]])
    once = np.array([[1, 3, 0, 0], [2, 2, 4, 0]])
    np.testing.assert_array_equal(got, np.concatenate([once, 10 * once]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recv_sizes": [[1, 2], [2, 1]]}, r"send_sizes\[0\] of device 1 .* is 1.*recv_sizes\[1\]"),
        ({"input_offsets": [[0, 2], [0, 1]]}, "rows 2 to 3 are beyond the operand of device 0"),
        ({"output_offsets": [[0, 3], [1, 2]]}, "rows 3 to 4 are beyond the output of device 1"),
    ],
    ids=["sizes", "operand", "output"],
)
def test_what_a_ragged_all_to_all_refuses(change, message):
    with pytest.raises(SimulationError, match=message):
        ragged(*{**EXAMPLE, **change}.values())


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32])
@pytest.mark.parametrize("collective", [lax.psum, lax.pmax, lax.pmin, lax.pmean])
@pytest.mark.parametrize("axes", [("x", "rows"), ("rows", "x")])
def test_axes_of_vmap_and_of_the_mesh_together(axes, collective, dtype):
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",), axis_types=(AUTO,))

    def rows(x):
        return jax.vmap(lambda row: collective(row, axes), axis_name="rows")(x)

    def function(x):
        spec = P("x")
        return jax.shard_map(rows, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

    x = np.random.default_rng(0).integers(-8, 8, (8, 6)).astype(dtype)
    expected = np.asarray(jax.jit(function)(x))
    np.testing.assert_array_equal(simulate(function, x).values, expected)


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.int8])
def test_sums_of_narrow_integers_wrap_around(dtype):
    mesh = AbstractMesh((2,), ("x",), axis_types=(AUTO,))
    x = np.array([7, -8, 3, 5, 6, -7, -3, 4]).astype(dtype)
    total = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    expected = (x[:4].astype(np.int32) + x[4:].astype(np.int32)).astype(dtype)
    np.testing.assert_array_equal(simulate(total, x).values, expected)
