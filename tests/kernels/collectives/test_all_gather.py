"""What ``all_gather`` refuses, and what it promises beyond what its spec draws."""

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

from reference_kernels.collectives import all_gather, all_gather_on_mesh

SCHEDULES = ("direct", "ring", "both")


def call(x: Any, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=2), "axis_name": "x", **options}
    return lambda: all_gather_on_mesh(x, **options)


def test_misuse() -> None:
    x = f32(2, 3)
    refuses(call(x, axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call(f32(3, 4)), "x must have one shard for each of the 2 devices", "(3, 4)")
    refuses(call(f32(2, 0)), "x must not be empty", "(0,)")
    refuses(call(x, schedule="star"), "schedule must be one of", "'star'")
    refuses(call(x, axis=2), "axis must be from -2 to 1, but it is 2", "(3,)")
    refuses(call(x, axis=1, tiled=True), "axis must be from -1 to 0, but it is 1", "(3,)")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("devices", "shape"),
    [(2, (3, 5)), (3, (7,)), (8, (2, 8, 130))],
    ids=lambda value: str(value),
)
def test_it_is_that_of_lax(pallas_run: Any, devices: int, shape: Any, schedule: Any) -> None:
    mesh, x = mesh_of(x=devices), numbers(devices, *shape)
    theirs = on_each(lambda x: jax.lax.all_gather(x, "x", axis=-1, tiled=True), mesh)(x)
    ours = pallas_run(
        all_gather_on_mesh, x, mesh=mesh, axis_name="x", axis=-1, tiled=True, schedule=schedule
    )
    same_bits(ours, theirs)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_scalars(pallas_run: Any) -> None:
    x = np.arange(4, dtype=np.int32)
    ours = pallas_run(all_gather_on_mesh, x, mesh=mesh_of(x=4), axis_name="x")
    same_bits(ours, np.broadcast_to(x, (4, 4)))


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_calls(pallas_run: Any, schedule: Any) -> None:
    def step(x: jax.Array) -> jax.Array:
        shards = all_gather(x, "x", schedule=schedule)
        return shards[(jax.lax.axis_index("x") + 1) % 4]

    x = numbers(4, 2, 5)
    ours = pallas_run(on_each(five_times(step), mesh_of(x=4)), x)
    same_bits(ours, np.roll(x, -5, axis=0))


@pytest.mark.parametrize("schedule", SCHEDULES)
class TestSchedules:
    """What is read off the traced kernels."""

    def operations(self, devices: int, schedule: str) -> list[str]:
        gather = functools.partial(
            all_gather_on_mesh, mesh=mesh_of(x=devices), axis_name="x", schedule=schedule
        )
        return operations(gather, jnp.zeros((devices, 32, 256)))

    def test_a_single_device_sends_nothing(self, schedule: str) -> None:
        found = {*self.operations(1, schedule)}
        assert "dma_start" in found
        assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & found

    def test_the_first_shards_leave_before_anything_is_waited_for(self, schedule: str) -> None:
        found = self.operations(8, schedule)
        first = {"direct": 7, "ring": 1, "both": 2}[schedule]
        assert found[: found.index("dma_wait")].count("send") == first

    def test_the_own_shard_is_copied_meanwhile(self, schedule: str) -> None:
        found = self.operations(8, schedule)
        assert found.index("send") < found.index("dma_start") < found.index("dma_wait")
