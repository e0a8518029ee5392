"""The backends ``interpret``, ``tpu-interpret``, ``gpu-interpret``: those that JAX ships."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_pallas.backends.protocol import Call, Kind, Outcome, chip_of
from pytest_pallas.compat.interpreters import (
    fail_interpreters,
    quiet_callbacks,
    release_interpreters,
)
from pytest_pallas.devices.targets import Target
from pytest_pallas.errors import DeadlockError

#: How long devices get to fail together, in seconds.
_LAST = 2.0


@contextmanager
def watchdog(timeout: float) -> Generator[list[DeadlockError]]:
    """End a simulated device's wait for something that does not come.

    When the time is over. Yields a list that then holds the error.

    Args:
      timeout: in seconds. A kernel that takes as long to be compiled gets them once more.
    """
    stopped: list[DeadlockError] = []
    done = threading.Event()

    def guard() -> None:
        while not done.wait(timeout):
            error = _over(timeout)
            if not fail_interpreters(error):
                continue  # it may be compiled still
            stopped.append(error)
            if not done.wait(_LAST):  # devices that failed wait for those that never began
                release_interpreters()
            return

    thread = threading.Thread(target=guard, name="pallas-watchdog", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        done.set()


def _over(timeout: float) -> DeadlockError:
    """The error for a kernel whose time is over."""
    return DeadlockError(
        f"the kernel did not finish within {timeout:g} s and was stopped. Does every wait on a "
        "semaphore, barrier or DMA have its signal, on every device? "
        "If the kernel is only slow, raise the limit with --pallas-timeout."
    )


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
