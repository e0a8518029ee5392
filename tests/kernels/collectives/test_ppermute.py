"""What ``ppermute`` refuses, and what it promises beyond what its spec draws."""

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

from reference_kernels.collectives import ppermute, ppermute_on_mesh

PERMUTATIONS = {
    "two cycles and a fixed point": [(0, 1), (1, 0), (2, 3), (3, 4), (4, 2), (5, 5)],
    "a path": [(0, 3), (3, 7), (7, 1)],
    "one to itself": [(6, 6)],
}


def call(perm: Any, x: Any = None, **axes: int) -> Any:
    mesh = mesh_of(**(axes or {"x": 2}))
    return lambda: ppermute_on_mesh(
        f32(2, 3) if x is None else x, mesh=mesh, axis_name="x", perm=perm
    )


def test_pairs() -> None:
    refuses(call([(0, 2)]), "perm must have positions on the axis 'x', from 0 to 1", "(0, 2)")
    refuses(call([(-1, 0)]), "perm must have positions on the axis 'x'", "(-1, 0)")
    refuses(call([(0, 1), (0, 0)]), "perm must have each position as source once", "0 is it twice")
    refuses(call([(0, 1), (1, 1)]), "perm must have each position as target once", "1 is it twice")


def test_mesh_and_operand() -> None:
    refuses(call([(0, 0)], y=2), "mesh must have an axis 'x'", "('y',)")
    refuses(call([(0, 0)], f32(3, 4)), "x must have one shard for each of the 2 devices", "(3, 4)")
    refuses(call([(0, 0)], f32(2, 0)), "x must not be empty", "(0,)")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("perm", PERMUTATIONS.values(), ids=PERMUTATIONS.keys())
def test_it_is_that_of_lax(pallas_run: Any, perm: Any) -> None:
    mesh, x = mesh_of(x=8), 1 + numbers(8, 5)
    theirs = on_each(lambda x: jax.lax.ppermute(x, "x", perm), mesh)(x)
    ours = pallas_run(ppermute_on_mesh, x, mesh=mesh, axis_name="x", perm=tuple(perm))
    same_bits(ours, theirs)


def test_no_pair_at_all_is_zeros_without_a_kernel() -> None:
    same_bits(call([], numbers(2, 3))(), f32(2, 3))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    x = 1 + numbers(3, 2)
    step = functools.partial(ppermute, axis_name="x", perm=[(0, 2), (2, 0)])
    ours = pallas_run(on_each(five_times(step), mesh_of(x=3)), x)
    same_bits(ours, np.stack([x[2], 0 * x[1], x[0]]))


@pytest.mark.parametrize("perm", [[(0, 0)], [(0, 0), (1, 1)]])
def test_fixed_points_send_nothing(perm: Any) -> None:
    found = operations(
        functools.partial(ppermute_on_mesh, mesh=mesh_of(x=2), axis_name="x", perm=perm), f32(2, 3)
    )
    assert "dma_start" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & {*found}
