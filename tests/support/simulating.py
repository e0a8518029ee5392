"""Simulate whatever a test calls, operation by operation, as ``simulate(..., jit=False)`` does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pytest_pallas.devices.absent import tracing_for
from pytest_pallas.devices.targets import TARGETS
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.simulate import simulating as on_machine


@contextmanager
def simulating(target: str = "v6e") -> Generator[None]:
    """Kernels and all other operations of JAX run on a simulated chip: nothing compiles.

    Arrays are tracers, whose values tests may look at. Memory that nobody has written is NaN.

    Raises:
      AssertionError: the simulator found a race, or a copy or semaphore that is left over.
    """
    chip = TARGETS[target]
    machine = Machine(target=target, cores=chip.cores)
    with tracing_for(chip), on_machine(machine):
        yield
    assert not machine.findings
