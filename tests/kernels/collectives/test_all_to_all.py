"""What ``all_to_all`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

import functools
from typing import Any

import jax
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

from reference_kernels.collectives import all_to_all, all_to_all_on_mesh


def call(x: Any, split_axis: int = 0, concat_axis: int = 0, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: all_to_all_on_mesh(x, split_axis=split_axis, concat_axis=concat_axis, **options)


def test_misuse() -> None:
    x = f32(2, 2, 3)
    refuses(call(x, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 2, 4)), "x must have one shard for each of the 2 devices", "(3, 2, 4)")
    refuses(call(f32(2, 2, 0)), "x must not be empty", "(2, 0)")
    refuses(call(x, split_axis=2), "split_axis must be from -2 to 1, but it is 2", "(2, 3)")
    refuses(call(x, concat_axis=-3), "concat_axis must be from -2 to 1, but it is -3", "(2, 3)")
    refuses(call(x, 1), "x must be as long as the 2 devices of axis 'x' along its axis 1", "(2, 3)")
    refuses(call(x, 1, tiled=True), "x must be a multiple of the 2 devices", "axis 1", "(2, 3)")
    refuses(call(f32(2, 4, 3)), "x must be as long as the 2 devices", "axis 0", "(4, 3)")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("shape", "split_axis", "concat_axis", "tiled"),
    [
        ((8, 3), 0, 1, False),
        ((4,), 0, 0, False),
        ((3, 4, 2, 5), 1, 3, False),
        ((3, 2, 4, 5), 2, 0, False),
        ((16,), 0, 0, True),
        ((64, 128), 0, 1, True),
        ((2, 64, 8), 1, 0, True),
        ((3, 16, 5, 2), -3, -1, True),
    ],
    ids=lambda value: str(value),
)
def test_it_is_that_of_lax(
    pallas_run: Any, shape: Any, split_axis: int, concat_axis: int, tiled: bool
) -> None:
    devices = 8 if shape[0] == 8 else 4
    mesh, x = mesh_of(x=devices), numbers(devices, *shape)
    axes = {"split_axis": split_axis, "concat_axis": concat_axis, "tiled": tiled}
    theirs = on_each(lambda x: jax.lax.all_to_all(x, "x", **axes), mesh)(x)
    ours = pallas_run(all_to_all_on_mesh, x, mesh=mesh, axis_name="x", **axes)
    same_bits(ours, theirs)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    x = numbers(4, 4, 5)
    step = functools.partial(all_to_all, axis_name="x", split_axis=0, concat_axis=0)
    same_bits(pallas_run(on_each(five_times(step), mesh_of(x=4)), x), x.swapaxes(0, 1))


def test_a_single_device_sends_nothing() -> None:
    exchange = functools.partial(
        all_to_all_on_mesh, mesh=mesh_of(x=1), axis_name="x", split_axis=0, concat_axis=1
    )
    found = operations(exchange, f32(1, 1, 3))
    assert "dma_start" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & {*found}


def test_everything_leaves_at_once() -> None:
    exchange = functools.partial(
        all_to_all_on_mesh, mesh=mesh_of(x=8), axis_name="x", split_axis=0, concat_axis=0
    )
    found = operations(exchange, f32(8, 8, 3))
    assert found[: found.index("dma_wait")].count("send") == 7


@pytest.mark.parametrize(("rows", "moves"), [(16, False), (8, True)])
def test_whole_tiles_are_not_moved_by_xla(rows: int, moves: bool) -> None:
    """A tile of bfloat16 has 16 rows."""
    exchange = functools.partial(
        all_to_all_on_mesh,
        mesh=mesh_of(x=2),
        axis_name="x",
        split_axis=1,
        concat_axis=0,
        tiled=True,
    )
    x = f32(2, 4, 2 * rows, 128).astype("bfloat16")
    assert ("transpose[" in str(jax.make_jaxpr(exchange)(x))) == moves
