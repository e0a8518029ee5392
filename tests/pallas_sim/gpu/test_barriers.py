"""Barriers between warpgroups: phases, arrivals, and what they order."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError, DeadlockError
from pallas_sim.machine import Machine

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
SEEDS = [0, 1, 2, 3]
SMEM = plgpu.SMEM((16, 128), jnp.float32)


def kernel(body: Any, *scratch: Any, threads: int = 2, shape: Any = (16, 128)) -> Any:
    def function(*arrays):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
            scratch_types=list(scratch),
            num_threads=threads,
            thread_name="wg",
        )(*arrays)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def handed_over(*, arrive: bool = True, wait: bool = True, arrivals: int = 1) -> Any:
    """One warpgroup writes to shared memory what another one reads."""

    def body(x_gmem, o_gmem, buffer, written):
        warpgroup = jax.lax.axis_index("wg")

        @pl.when(warpgroup == 0)
        def _write():
            buffer[...] = x_gmem[pl.ds(0, 16)] * 2
            if arrive:
                plgpu.barrier_arrive(written)

        @pl.when(warpgroup == 1)
        def _read():
            if wait:
                plgpu.barrier_wait(written)
            o_gmem[...] = buffer[...]

    return kernel(body, SMEM, plgpu.Barrier(num_arrivals=arrivals))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_arrival_orders_what_came_before(seed):
    found = simulate(handed_over(), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16] * 2)
    assert kinds(found) == []


@pytest.mark.parametrize("body", [handed_over(), handed_over(wait=False)])
def test_a_run_is_freed(body):
    def count() -> int:
        gc.collect()
        return sum(type(thing) is Machine for thing in gc.get_objects())

    before = count()
    simulate(body, X, target="h100")
    assert count() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_wait(seed):
    found = simulate(handed_over(wait=False), X, target="h100", seed=seed)
    (race,) = found.findings
    assert race.kind == "race"
    assert race.ref == "buffer"
    owners = {access.owner.thread for access in race.accesses}
    assert owners == {"block 0, warpgroup 0", "block 0, warpgroup 1"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", [{"arrive": False}, {"arrivals": 2}])
def test_a_phase_that_never_completes(seed, options):
    with pytest.raises(DeadlockError, match=r"written \(phase 0\)") as raised:
        simulate(handed_over(**options), X, target="h100", seed=seed)
    waits = {wait.owner.thread: wait for wait in raised.value.findings[0].waits}
    wait = waits["block 0, warpgroup 1"]
    assert (wait.needed, wait.had) == (
        options.get("arrivals", 1),
        int("arrive" not in options),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_more_arrivals_than_a_phase_has(seed):
    """The barrier counts one copy, and two bring their bytes to it."""

    def body(x_gmem, o_gmem, buffer, arrived):
        for half in range(2):
            rows = pl.ds(8 * half, 8)
            plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer.at[rows], arrived)
        plgpu.barrier_wait(arrived)
        o_gmem[...] = buffer[...]

    function = kernel(body, SMEM, plgpu.Barrier(num_arrivals=1), threads=1)
    found = found_kinds(function, seed)
    assert found & {"phase", "race"}
    assert "phase" in found or seed


def overrun(*, free: bool) -> Any:
    """Rounds of a producer, which need not wait until a consumer has seen the last one."""

    def body(x_gmem, o_gmem, buffer, full, empty):
        warpgroup = jax.lax.axis_index("wg")

        @pl.when(warpgroup == 0)
        def _produce():
            for step in range(4):
                if free and step:
                    plgpu.barrier_wait(empty)
                plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(16 * step, 16)], buffer, full)
            if free:
                plgpu.barrier_wait(empty)

        @pl.when(warpgroup == 1)
        def _consume():
            total = jnp.zeros((16, 128), jnp.float32)
            for _ in range(4):
                plgpu.barrier_wait(full)
                total += buffer[...]
                plgpu.commit_smem()
                plgpu.barrier_arrive(empty)
            o_gmem[...] = total

    return kernel(body, SMEM, plgpu.Barrier(), plgpu.Barrier())


@pytest.mark.parametrize("seed", SEEDS)
def test_phases_that_follow_each_other(seed):
    found = simulate(overrun(free=True), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X.reshape(4, 16, 128).sum(axis=0))
    assert kinds(found) == []


def found_kinds(function: Any, seed: int) -> set[str]:
    """The kinds of what is found, also where a run ends in a deadlock."""
    machine = Machine(target="h100", seed=seed)
    with contextlib.suppress(DeadlockError):
        simulate(function, X, machine=machine)
    return {finding.kind for finding in machine.findings}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_phase_that_a_waiting_warpgroup_may_miss(seed):
    """The producer fills the buffer again before it is read."""
    found = found_kinds(overrun(free=False), seed)
    assert "race" in found
    assert "phase" in found or seed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_phase_that_completes_again_is_proved_not_observed(seed):
    """The wait may happen to come in time, but nothing makes it."""

    def body(x_gmem, o_gmem, turn):
        warpgroup = jax.lax.axis_index("wg")

        @pl.when(warpgroup == 0)
        def _arrive():
            for _ in range(3):
                plgpu.barrier_arrive(turn)

        @pl.when(warpgroup == 1)
        def _wait():
            plgpu.barrier_wait(turn)
            o_gmem[...] = x_gmem[pl.ds(0, 16)]

    assert "phase" in found_kinds(kernel(body, plgpu.Barrier()), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_arriving_and_waiting_at_once(seed):
    def body(x_gmem, o_gmem, buffer, met):
        warpgroup = jax.lax.axis_index("wg")
        rows = pl.ds(warpgroup * 8, 8)
        buffer[rows] = x_gmem[rows]
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)
        other = pl.ds((1 - warpgroup) * 8, 8)
        o_gmem[other] = buffer[other]

    function = kernel(body, SMEM, plgpu.Barrier(num_arrivals=2))
    found = simulate(function, X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16])
    assert kinds(found) == []


def test_a_barrier_that_does_not_exist():
    def body(x_gmem, o_gmem, barriers):
        plgpu.barrier_wait(barriers.at[x_gmem[0, 3].astype(jnp.int32)])

    with pytest.raises(BoundsError, match=r"use of barriers \[2\] beyond its edge: index 3"):
        simulate(kernel(body, plgpu.Barrier(num_barriers=2), threads=1), X, target="h100")


@pytest.mark.parametrize("seed", SEEDS)
def test_testing_a_barrier(seed):
    """A warp asks until the copy is there."""

    def body(x_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, arrived)

        @plgpu.warp_map
        def _per_warp(warp):
            @pl.when(warp == 0)
            def _ask():
                def ask(_):
                    return plgpu.barrier_test(arrived).astype(jnp.int32)

                jax.lax.while_loop(lambda there: there < 1, ask, jnp.int32(0))

        o_gmem[...] = buffer[...]

    found = simulate(kernel(body, SMEM, plgpu.Barrier(), threads=1), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16])
    assert kinds(found) == []
