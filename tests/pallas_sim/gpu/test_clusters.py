"""Clusters: blocks that reach each other's shared memory and barriers."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import DeadlockError
from pallas_sim.machine import Machine

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
SEEDS = [0, 1, 2, 3]
SMEM = plgpu.SMEM((16, 128), jnp.float32)


def kernel(body: Any, *scratch: Any, shape: Any = (32, 128), **more: Any) -> Any:
    def function(*arrays):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
            scratch_types=list(scratch),
            cluster=(2,),
            cluster_names=("rank",),
            **more,
        )(*arrays)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def shared_load(*, rounds: int = 1, meet: bool = True) -> Any:
    """Both blocks load the same rows together, and write them out with their rank added."""

    def body(x_gmem, o_gmem, buffer, arrived, read):
        rank = jax.lax.axis_index("rank")
        for step in range(rounds):
            rows = pl.ds(16 * step, 16)
            plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, arrived, collective_axes="rank")
            plgpu.barrier_wait(arrived)
            o_gmem[pl.ds(rank * 16, 16)] = buffer[...] + rank
            if meet:
                plgpu.commit_smem()
                plgpu.barrier_arrive(read)
                plgpu.barrier_wait(read)

    return kernel(body, SMEM, plgpu.Barrier(), plgpu.ClusterBarrier(collective_axes=("rank",)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_multicast_load(seed):
    found = simulate(shared_load(), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, np.concatenate([X[:16], X[:16] + 1]))
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_buffer_that_both_blocks_fill_again(seed):
    right = simulate(shared_load(rounds=2), X, target="h100", seed=seed)
    np.testing.assert_array_equal(right.values, np.concatenate([X[16:], X[16:] + 1]))
    assert kinds(right) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_buffer_that_the_other_block_may_still_read(seed):
    machine = Machine(target="h100", seed=seed)
    with contextlib.suppress(DeadlockError):
        simulate(shared_load(rounds=2, meet=False), X, machine=machine)
    assert {"race", "phase"} & {finding.kind for finding in machine.findings}


def peers_memory(*, meet: bool = True, stay: bool = True) -> Any:
    """Each block reads the shared memory of the other one."""

    def body(x_gmem, o_gmem, buffer, written, read):
        rank = jax.lax.axis_index("rank")
        rows = pl.ds(rank * 16, 16)
        buffer[...] = x_gmem[rows]
        if meet:
            plgpu.barrier_arrive(written)
            plgpu.barrier_wait(written)
        o_gmem[rows] = plgpu.cluster_ref(buffer, {"rank": 1 - rank})[...]
        if stay:
            plgpu.barrier_arrive(read)
            plgpu.barrier_wait(read)

    both = plgpu.ClusterBarrier(collective_axes=("rank",))
    return kernel(body, SMEM, both, both)


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_of_another_block(seed):
    found = simulate(peers_memory(), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, np.concatenate([X[16:], X[:16]]))
    assert kinds(found) == []
    assert "race" in kinds(simulate(peers_memory(meet=False), X, target="h100", seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_that_ends_before_another_one_has_read_its_memory(seed):
    found = simulate(peers_memory(stay=False), X, target="h100", seed=seed)
    assert set(kinds(found)) == {"race"}
    assert all("may end before another one" in race.message for race in found.findings)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [True, False])
def test_an_arrival_at_a_block_that_may_have_ended(seed, waits):
    def body(x_gmem, o_gmem, met):
        rank = jax.lax.axis_index("rank")
        plgpu.barrier_arrive(met)
        if waits:
            plgpu.barrier_wait(met)
        o_gmem[pl.ds(rank * 16, 16)] = x_gmem[pl.ds(rank * 16, 16)]

    both = plgpu.ClusterBarrier(collective_axes=("rank",))
    found = simulate(kernel(body, both), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X)
    assert set(kinds(found)) == (set() if waits else {"race"})
    assert {race.ref for race in found.findings} <= {"a barrier", "met"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("atomic", [None, "add"])
def test_stores_to_another_block(seed, atomic):
    def body(x_gmem, o_gmem, buffer, ready, arrived, done):
        rank = jax.lax.axis_index("rank")
        rows = pl.ds(rank * 16, 16)
        buffer[...] = jnp.ones((16, 128), jnp.float32)
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        plgpu.async_store_smem(
            x_gmem[rows], buffer, arrived, cluster_idx=1 - rank, cluster_dim="rank", atomic=atomic
        )
        plgpu.barrier_wait(arrived)
        o_gmem[rows] = buffer[...]
        plgpu.barrier_arrive(done)
        plgpu.barrier_wait(done)

    both = plgpu.ClusterBarrier(collective_axes=("rank",))
    found = simulate(kernel(body, SMEM, both, plgpu.Barrier(), both), X, target="h100", seed=seed)
    swapped = np.concatenate([X[16:], X[:16]])
    np.testing.assert_array_equal(found.values, swapped + (atomic is not None))
    assert kinds(found) == []
