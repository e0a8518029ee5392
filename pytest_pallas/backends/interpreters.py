"""The backends ``interpret``, ``tpu-interpret``, ``gpu-interpret``: JAX's interpreters as they are.

They are somebody else's opinion of what a kernel does, to compare the simulator's with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_pallas.backends.protocol import Call, Kind, Outcome, chip_of
from pytest_pallas.backends.watchdog import watchdog
from pytest_pallas.compat.interpreters import quiet_callbacks
from pytest_pallas.devices.targets import Target


@dataclass(frozen=True)
class Interpreter:
    """A backend that runs kernels in an interpreter of JAX, which it does not change.

    Attributes:
      name: the family.
      platform: whose kernels it interprets.
      target: the chip that kernels believe to be on; None is the default.
    """

    name: str
    platform: str
    target: Target | None = None
    kind: Kind = "interpreting"

    @property
    def parameters(self) -> Any:
        """What Pallas takes as ``interpret=``."""
        from jax.experimental.pallas import tpu as pltpu

        if self.name == "interpret":
            return True
        if self.platform == "gpu":
            from jax.experimental.pallas import mosaic_gpu as plgpu

            return plgpu.InterpretGPUParams(uninitialized_memory="nan", out_of_bounds_reads="raise")
        return pltpu.InterpretParams(uninitialized_memory="nan", out_of_bounds_reads="raise")

    def available(self) -> str | None:
        """Always None: an interpreter needs nothing but the host's CPU."""
        return None

    def run(self, call: Call) -> Outcome:
        """Interpret a call; see ``Backend.run``.

        Fills, probes and schedules are not heeded, and races not looked for.
        """
        from pytest_pallas.backends import execution
        from pytest_pallas.backends.tracing import jitted

        runner = jitted(quick=True) if call.jit else None
        with watchdog(call.timeout) as stopped:
            outcome = execution.execute(call, self.context, runner=runner)
        if outcome.error is not None:
            execution.recover()
            if stopped:  # each waiting device raised the stop as an error of its own callback
                return dataclasses.replace(outcome, error=stopped[0])
        return outcome

    @contextmanager
    def context(self, *, races: bool = False) -> Generator[None]:
        """Force this interpreter, on the host's CPU, for kernels that ask for a device kind.

        ``races`` makes no difference.
        """
        from jax.experimental.pallas import tpu as pltpu

        from pytest_pallas.devices.absent import tracing_for

        del races
        with (
            tracing_for(chip_of(self)),
            quiet_callbacks(),
            pltpu.force_tpu_interpret_mode(self.parameters),
        ):
            yield


def interpret(target: Target | None = None) -> Interpreter:
    """Pallas' portable interpreter, which runs the kernel's arithmetic as HLO."""
    return Interpreter("interpret", "any", target)


def gpu_interpret(target: Target | None = None) -> Interpreter:
    """Mosaic GPU interpret mode: shared memory, barriers, asynchronous copies."""
    return Interpreter("gpu-interpret", "gpu", target)


def tpu_interpret(target: Target | None = None) -> Interpreter:
    """TPU interpret mode: simulated memories, DMAs, semaphores and devices."""
    return Interpreter("tpu-interpret", "tpu", target)
