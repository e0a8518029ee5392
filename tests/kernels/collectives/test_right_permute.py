"""What ``right_permute`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

import functools
from typing import Any

import jax
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

from reference_kernels.collectives import right_permute, right_permute_on_mesh


def test_mesh() -> None:
    refuses(lambda: right_permute_on_mesh(f32(1, 2, 3), mesh=mesh_of(y=1)), "an axis 'x'", "('y',)")


def test_operand() -> None:
    mesh = mesh_of(x=2)
    refuses(
        lambda: right_permute_on_mesh(f32(3, 4), mesh=mesh),
        "x must have one shard for each of the 2 devices",
        "(3, 4)",
    )
    refuses(lambda: right_permute_on_mesh(f32(2, 0), mesh=mesh), "x must not be empty", "(0,)")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("devices", [2, 8])
def test_it_is_ppermute(pallas_run: Any, devices: int) -> None:
    mesh, x = mesh_of(x=devices), numbers(devices, 3, 5)
    ring = [(i, (i + 1) % devices) for i in range(devices)]
    theirs = on_each(lambda x: jax.lax.ppermute(x, "x", ring), mesh)(x)
    same_bits(pallas_run(right_permute_on_mesh, x, mesh=mesh), theirs)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    x = numbers(3, 2, 5)
    step = functools.partial(right_permute, axis_name="x")
    same_bits(pallas_run(on_each(five_times(step), mesh_of(x=3)), x), np.roll(x, 5, axis=0))


def test_a_single_device_sends_nothing() -> None:
    found = operations(functools.partial(right_permute_on_mesh, mesh=mesh_of(x=1)), f32(1, 2, 3))
    assert "dma_start" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & {*found}
