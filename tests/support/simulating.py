"""Simulate whatever a test calls, operation by operation, as ``simulate(..., jit=False)`` does."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax._src import core

from pytest_pallas.compat.eager import _trace_type
from pytest_pallas.devices.absent import tracing_for
from pytest_pallas.devices.targets import TARGETS
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.machine import Machine, Thread
from pytest_pallas.simulator.memory import Ref
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.simulate import _monitored
from pytest_pallas.simulator.threads import one_thread
from pytest_pallas.simulator.values import from_jax


@contextmanager
def simulating(target: str = "v6e") -> Generator[None]:
    """Kernels run on a simulated chip, and so does all else that JAX is asked: nothing compiles.

    Arrays are tracers, whose values tests may look at. Memory that nobody has written is NaN.

    Raises:
      AssertionError: the simulator found a race, or a copy or semaphore that is left over.
    """
    chip = TARGETS[target]
    machine = Machine(target=target, cores=chip.cores)
    thread = Thread(machine)

    def evaluate(jaxpr: Any, values: Sequence[Any]) -> Sequence[Any]:
        inputs = [
            value if isinstance(value, Ref) else from_jax(value, var.aval)
            for value, var in zip(values, getattr(jaxpr, "jaxpr", jaxpr).invars, strict=True)
        ]
        return run(prepare(jaxpr), thread, inputs)

    with (
        tracing_for(chip),
        np.errstate(all="ignore"),
        one_thread(),
        _monitored(thread),
        core.set_current_trace(_trace_type()(evaluate)),
    ):
        yield
    assert not machine.findings
