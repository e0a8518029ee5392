"""Wrong kernels of order on the simulator, whatever the order of events; right ones pass in all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import table

from pallas_sim import explore
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
    "neighbours_for_all": DmaError,
    "never_signalled": DeadlockError,
    "no_barrier": DmaError,
    "one_signal_more": DmaError,
    "send_not_waited_for": DmaError,
    "to_the_wrong_side": DmaError,
    "too_few_waits": DmaError,
    "too_many_waits": DeadlockError,
}

#: Those whose orders have other events, or give other values, and no finding in the plain one.
EXPLORED = ("added_as_they_come", "one_device_late")

NAMES = [name for name, spec in SPECS.items() if table.family_of(spec) in FAMILIES]
WRONG = [name for name in NAMES if not table.is_right(name)]
RIGHT = [name for name in NAMES if table.is_right(name)]


def arguments(name: str, devices: int) -> tuple[Any, ...]:
    """What shows the mistake: enough blocks for two slots, and shards of several rows."""
    rows = devices if name.startswith("phases") else 8
    shapes = {"collectives": (devices, rows, 128), "SparseCores": (4, 16)}
    shape = shapes.get(table.family_of(SPECS[name]), (40, 128))
    if name.startswith("two_rounds_ahead"):
        shape = (6, 4, 16)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if name.startswith("added_as_they_come"):
        x = np.sqrt(x)
    if name.startswith("fewer_steps"):
        return (x[:8],)  # one block, for three stages
    if name.startswith("shared_semaphore"):
        return (x, x)
    if name.startswith("waits_for_too_few"):
        return (x, np.arange(5, dtype=np.int32))
    return (x,)


def kernel_of(name: str, devices: int | None = None) -> tuple[Any, int]:
    """A kernel with its options, and on how many devices it runs."""
    spec = SPECS[name]
    function: Any = spec.kernel_for("tpu")
    if name.startswith("fewer_steps"):
        return functools.partial(function, stages=3), 1
    if not spec.meshes:
        return function, 1
    if len(jax.devices()) < 4:
        pytest.skip("4 devices are needed")
    sizes = sizes_of(spec.mesh_axes[0])[0] if devices is None else {"x": devices}
    mesh = make_mesh(sizes, "cpu")
    return functools.partial(function, mesh=mesh), mesh.size


def outcomes(name: str, seeds: Sequence[int]) -> list[Outcome]:
    """A call in several orders of events."""
    function, devices = kernel_of(name)
    return [
        tpu_sim().run(
            Call(
                function=function,
                args=arguments(name, devices),
                options={},
                schedule=Schedule(seed=seed),
                settings=RunSettings(devices=devices),
            )
        )
        for seed in seeds
    ]


@pytest.mark.parametrize("name", [name for name in WRONG if name not in EXPLORED])
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


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_wrong_in_some_order(name: str) -> None:
    function, devices = kernel_of(name)
    result = explore(function, *arguments(name, devices), target="v6e")
    assert result.verdict == "wrong"
    if name in EXPLORED:
        assert result.differs or isinstance(result.error, DeadlockError)
        assert result.confirmed


@pytest.mark.parametrize("name", RIGHT)
def test_all_orders_of_a_right_one_are_proved(name: str) -> None:
    function, devices = kernel_of(name)
    assert explore(function, *arguments(name, devices), target="v6e").verdict == "proved"


def test_two_devices_never_notice_that_a_credit_is_too_large() -> None:
    verdicts = {
        devices: explore(
            kernel_of("credit_too_large", devices)[0],
            *arguments("credit_too_large", devices),
            target="v6e",
        ).verdict
        for devices in (2, 3, 4)
    }
    assert verdicts == {2: "proved", 3: "wrong", 4: "wrong"}


# Those of GPUs: what their orders are is known for few programs.

LOCKS = [name for name, spec in SPECS.items() if Path(spec.file).stem == "locks"]


@pytest.mark.parametrize("name", LOCKS)
def test_orders_of_programs_and_blocks(name: str) -> None:
    spec = SPECS[name]
    x = np.sqrt(np.arange(32 * 128, dtype=np.float32).reshape(32, 128))
    if table.family_of(spec) == "grids of a GPU":
        x = x[:16, :16] if name.startswith("parts") else np.arange(8 * 16).reshape(8, 16)
        x = x if name.startswith("parts") else x.astype(np.int32)
    result = explore(spec.kernel_for("gpu"), x, target="h100")
    assert result.verdict == ("proved" if table.is_right(name) else "wrong")
