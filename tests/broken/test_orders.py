"""Wrong kernels of order on the simulator, whatever the order of events; right ones pass in all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
import table

from pallas_sim.errors import BoundsError, DeadlockError
from pytest_pallas import DmaError, RaceError
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.backends.protocol import Call, Outcome, RunSettings, Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.draw.meshes import sizes_of

SPECS = table.specs()
FAMILIES = ("collectives", "DMA pipelines", "SparseCores")

#: Races are most of what can be wrong; these are something else.
OTHERS: dict[str, type[Exception]] = {
    "counted_twice": DmaError,
    "fewer_steps_than_stages": BoundsError,
    "last_store": DmaError,
    "meets_one_side": DmaError,
    "never_signalled": DeadlockError,
    "no_barrier": DmaError,
    "one_signal_more": DmaError,
    "send_not_waited_for": DmaError,
    "to_the_wrong_side": DmaError,
    "too_few_waits": DmaError,
    "too_many_waits": DeadlockError,
}

NAMES = [name for name, spec in SPECS.items() if table.family_of(spec) in FAMILIES]
WRONG = [name for name in NAMES if not table.is_right(name)]
RIGHT = [name for name in NAMES if table.is_right(name)]


def arguments(name: str) -> tuple[Any, ...]:
    """What shows the mistake: enough blocks for two slots, and shards of several rows."""
    shape = {"collectives": (4, 8, 128), "SparseCores": (4, 16)}.get(
        table.family_of(SPECS[name]), (40, 128)
    )
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if name.startswith("fewer_steps"):
        return (x[:8],)  # one block, for three stages
    if name.startswith("shared_semaphore"):
        return (x, x)
    if name.startswith("waits_for_too_few"):
        return (x, np.arange(5, dtype=np.int32))
    return (x,)


def outcomes(name: str, seeds: Sequence[int]) -> list[Outcome]:
    """A call in several orders of events."""
    spec, devices, backend = SPECS[name], 1, tpu_sim()
    function: Any = spec.kernel_for("tpu")
    if spec.meshes:
        if len(jax.devices()) < 4:
            pytest.skip("4 devices are needed")
        mesh = make_mesh(sizes_of(spec.mesh_axes[0])[0], "cpu")
        function, devices = functools.partial(function, mesh=mesh), mesh.size
    return [
        backend.run(
            Call(
                function=function,
                args=arguments(name),
                options={"stages": 3} if name.startswith("fewer_steps") else {},
                schedule=Schedule(seed=seed),
                settings=RunSettings(devices=devices),
            )
        )
        for seed in seeds
    ]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_caught_in_every_order(name: str) -> None:
    expected = OTHERS.get(name, RaceError)
    errors = [each.error for each in outcomes(name, range(3))]
    assert [type(error) for error in errors] == [expected] * 3
    assert all("tests/broken/" in str(error) for error in errors)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_is_not_reported_in_any_order(name: str) -> None:
    found = outcomes(name, range(10))
    assert [each.error for each in found] == [None] * 10
    first = jax.tree.leaves(found[0].values)
    for each in found[1:]:
        for one, other in zip(jax.tree.leaves(each.values), first, strict=True):
            np.testing.assert_array_equal(one, other)
