"""The backends ``interpret``, ``tpu-interpret``, ``gpu-interpret``: JAX's interpreters."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pallas_sim.chips import Target
from pallas_sim.errors import DeadlockError
from pytest_pallas.backends.protocol import Call, Kind, Outcome, chip_of
from pytest_pallas.compat.settings import fail_interpreters, quiet_callbacks, release_interpreters
from pytest_pallas.errors import UnsupportedKernelError

#: Seconds in which all devices must fail.
_LAST = 2.0


@contextmanager
def watchdog(timeout: float) -> Generator[list[DeadlockError]]:
    """Stop the waits of simulated devices after a timeout.

    Yields a list that holds the error after the timeout.

    Args:
      timeout: in seconds. A kernel that is still compiling gets them once more.
    """
    stopped: list[DeadlockError] = []
    done = threading.Event()

    def guard() -> None:
        while not done.wait(timeout):
            error = _over(timeout)
            if not fail_interpreters(error):
                continue  # it may still be compiling
            stopped.append(error)
            if not done.wait(_LAST):  # failed devices wait for those that never started
                release_interpreters()
            return

    thread = threading.Thread(target=guard, name="pallas-watchdog", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        done.set()


def _over(timeout: float) -> DeadlockError:
    """Return the error of a kernel that exceeds its time limit."""
    error = DeadlockError(
        f"the kernel did not finish within {timeout:g} s and was stopped. Check that every wait on "
        "a semaphore, barrier or DMA receives its signal, on every device. If the kernel is only "
        "slow, raise --pallas-timeout."
    )
    error.timed_out = True
    return error


@dataclass(frozen=True)
class Interpreter:
    """A backend that runs kernels in an unmodified interpreter of JAX.

    Attributes:
      name: the family.
      platform: the platform of its kernels.
      target: the chip that kernels see; None is the default.
    """

    name: str
    platform: str
    target: Target | None = None
    kind: Kind = "interpreting"

    @property
    def parameters(self) -> Any:
        """The value of Pallas' ``interpret=``."""
        from jax.experimental.pallas import tpu as pltpu

        if self.name == "interpret":
            return True
        if self.platform == "gpu":
            from jax.experimental.pallas import mosaic_gpu as plgpu

            return plgpu.InterpretGPUParams(uninitialized_memory="nan", out_of_bounds_reads="raise")
        return pltpu.InterpretParams(uninitialized_memory="nan", out_of_bounds_reads="raise")

    def available(self) -> str | None:
        """Always None: an interpreter needs only the host's CPU."""
        return None

    def run(self, call: Call) -> Outcome:
        """Interpret a call; see ``Backend.run``.

        It ignores fills, probes and schedules, and does not detect races.
        """
        from pytest_pallas.backends import execution

        with watchdog(call.settings.timeout) as stopped:
            outcome = execution.execute(call, self.context, self._prepare)
        if outcome.error is not None:
            execution.recover()
            if stopped:  # each waiting device raised the stop as an error of its callback
                return dataclasses.replace(outcome, error=stopped[0])
        return outcome

    def _prepare(self, static: Any, arrays: list[Any], *, spread: bool = False) -> Any:
        """See ``execution.Preparer``; only ``interpret`` can run on a spread mesh."""
        from pytest_pallas.backends.tracing import jitted

        run = jitted(static, quick=True)
        if not spread:
            return run
        if self.name == "interpret":
            return run.lower(arrays).compile()
        raise UnsupportedKernelError(
            f"{self.name} simulates the devices of a mesh in one process, where they wait for each "
            "other, and this mesh has devices of several processes. Use interpret, a simulator "
            "or hardware."
        )

    @contextmanager
    def context(self) -> Generator[None]:
        """Force this interpreter on the host's CPU, also for kernels that read the device kind."""
        from jax.experimental.pallas import tpu as pltpu

        from pallas_sim.tracing import tracing_for

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
