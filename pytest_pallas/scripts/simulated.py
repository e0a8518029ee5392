# ruff: noqa: T201
"""How a stand-alone script simulates a call: with the simulator of this package, without pytest."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_pallas.errors import DmaError, RaceError
from pytest_pallas.findings import OF_TRANSFERS
from pytest_pallas.scripts.standalone.parts import Case, StandIns
from pytest_pallas.simulator import Machine, simulate


def simulated(
    function: Callable[..., Any], args: Any, options: Any, *, jit: bool = True, **machine: Any
) -> Any:
    """``function(*args, **options)`` on a simulated chip. What is found besides is printed.

    Raises:
      RaceError: nothing orders two accesses.
      DmaError: a copy without a wait, a count that is left, a device that may not be there.
    """
    bound = functools.partial(function, **options)
    simulation = simulate(bound, *args, machine=Machine(**machine), jit=jit)
    for finding in simulation.findings:
        print(finding)
    for error, kinds in ((RaceError, ("race",)), (DmaError, OF_TRANSFERS)):
        found = [finding for finding in simulation.findings if finding.kind in kinds]
        if found:
            raise error.of(*found)
    return simulation.values


def stand_in_beside_the_simulator() -> None:
    """Import stand-ins for what the simulator does not need, where hypothesis is not installed."""
    if importlib.util.find_spec("hypothesis") is None:
        homes = ("backends", "checks", "compilers", "record", "relations", "spec", "strategies")
        names = [f"pytest_pallas.{home}" for home in (*homes, "suites")]
        sys.meta_path.insert(0, StandIns(*names))


def seeded(case: Case, seed: int) -> Case:
    """The case with another order of everything that may happen in any."""

    @contextmanager
    def backend() -> Generator[Any]:
        with case.backend() as simulator:
            yield functools.partial(simulator, seed=seed)

    return replace(case, backend=backend)


def refilled(case: Case, value_of: Callable[[Any], Any]) -> Case:
    """The case with other values in memory that nobody has written; ``value_of`` gets a dtype."""

    @contextmanager
    def backend() -> Generator[Any]:
        with case.backend() as simulator:
            yield functools.partial(simulator, fill=lambda dtype, _: value_of(dtype))

    return replace(case, backend=backend)
