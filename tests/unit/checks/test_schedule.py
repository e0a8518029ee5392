"""``sanitizers.schedule``, and which schedules there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import OptionError
from pallas_sim.chips import TARGETS
from pytest_pallas import NotApplicableError
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.schedule import SEEDS, Runs, schedule, under_schedules
from pytest_pallas.record import Orders

from . import rings


def failures(finding):
    return [comparison for comparison in finding.comparisons if not comparison.passed]


def test_programs_that_need_their_order(context):
    kernel = rings.other(rings.carried, semantics="parallel")
    found = failures(schedule(context(kernel, rings.BLOCKS)))
    assert any("seed 1 of the schedule" in each.message for each in found)
    assert any("divided over 2 cores" in each.message for each in found)


@pytest.mark.parametrize(
    ("kernel", "devices"), [(rings.by_dma, 1), (rings.ring, 4)], ids=["dma", "ring"]
)
def test_a_right_kernel_gives_the_same_bits(context, kernel, devices):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS
    asked = context(kernel, x, devices=devices)
    assert not failures(schedule(asked))
    assert asked.orders == [Orders(proved=1, runs=1, classes=1)]  # its first run proves all


def test_one_order_only(context):
    with pytest.raises(NotApplicableError):
        schedule(context(rings.carried, rings.BLOCKS))


@pytest.mark.parametrize(("chip", "cores"), [("v5p", {1, 2}), ("v6e", {1})])
def test_as_many_cores_as_the_chip_has(context, chip, cores):
    kernel = rings.other(rings.carried, semantics="parallel")
    asked = context(kernel, rings.BLOCKS, backend=tpu_sim(TARGETS[chip]))
    assert {each.cores for each, _ in under_schedules(asked)} == cores


def test_runs_are_shared(context):
    asked = context(rings.by_dma, rings.BLOCKS)
    first = [outcome for _, outcome in under_schedules(asked)]
    assert [outcome for _, outcome in under_schedules(asked)] == first
    again = Runs().get(asked, Schedule())
    assert again is not first[0]


# Orders of threads and copies.


def arrivals(devices: int, *, noted: bool) -> Callable[[Any], Any]:
    """Return a call in which device 0 looks how many of the others have come, and may note it."""
    mesh = Mesh(np.array(jax.devices()[:devices]), "x")

    def body(x_ref, o_ref, sem):
        o_ref[0] = x_ref[0]
        pl.semaphore_signal(sem, 1, device_id=0)

        @pl.when(jax.lax.axis_index("x") == 0)
        def _():
            for _ in range(devices):
                pl.semaphore_wait(sem, 1)
                o_ref[0] += pl.semaphore_read(sem) * noted

    def call(x):
        kernel = pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
            scratch_shapes=[pltpu.SemaphoreType.REGULAR],
            compiler_params=pltpu.CompilerParams(collective_id=None, has_side_effects=True),
        )
        return jax.shard_map(kernel, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(
            x
        )

    return call


def exploring(context, kernel, devices, schedules=100, **settings):
    asked = context(kernel, jnp.arange(devices, dtype=jnp.int32), devices=devices)
    return replace(asked, settings=replace(asked.settings, schedules=schedules, **settings))


def test_an_order_that_gives_other_values_is_found_with_its_witness(context):
    asked = exploring(context, arrivals(3, noted=True), 3)
    result = schedule(asked)
    assert failures(result)
    assert result.schedule.witness.startswith("1-v6e-")
    assert any("is late" in line for line in result.schedule.story)
    (orders,) = asked.orders
    assert (orders.proved, orders.wrong, orders.open, orders.unconfirmed) == (0, 1, 0, 0)
    assert "a look at sem" in orders.reasons[0]
    # It is run again without exploring.
    again = exploring(context, asked.kernel, 3, witness=result.schedule.witness)
    assert [each.witness for each, _ in under_schedules(again)] == ["", result.schedule.witness]
    assert failures(schedule(again))


def test_all_orders_of_a_right_kernel_are_run(context):
    asked = exploring(context, arrivals(3, noted=False), 3)
    assert [each for each, _ in under_schedules(asked)] == [Schedule()]  # no seed is needed
    (orders,) = asked.orders
    assert orders.proved == 1
    assert orders.runs >= orders.classes > 1


def test_a_budget_that_does_not_suffice_leaves_orders_open(context):
    asked = exploring(context, arrivals(4, noted=False), 4, schedules=2)
    seeds = [each.seed for each, _ in under_schedules(asked)]
    assert seeds == [0, *SEEDS]  # what was not run is left to chance
    (orders,) = asked.orders
    assert orders.open == 1
    assert orders.left > 0
    assert (orders.tried, orders.most) == (orders.classes, 2)


def test_a_budget_of_one_explores_nothing(context):
    asked = exploring(context, arrivals(3, noted=False), 3, schedules=1)
    assert [each.seed for each, _ in under_schedules(asked)] == [0, *SEEDS]
    assert not asked.orders


def test_a_witness_of_another_call(context):
    asked = exploring(context, arrivals(3, noted=True), 3, witness="1-v6e-00000000-1.1")
    with pytest.raises(OptionError, match=r"--pallas-witness=1-v6e-0{8}-1\.1: .* this is call"):
        schedule(asked)
