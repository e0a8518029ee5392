"""Simulate whatever a test calls, operation by operation, as ``simulate(..., jit=False)`` does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pallas_sim.chips import TARGETS
from pallas_sim.machine import Machine
from pallas_sim.simulation import simulating as on_machine
from pallas_sim.tracing import tracing_for


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
