"""The interpreting backends: ``interpret``, ``tpu-interpret`` and ``gpu-interpret``."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas import compat
from pytest_pallas.backends import fills
from pytest_pallas.backends.protocol import Call, Kind, Outcome
from pytest_pallas.backends.targets import DEFAULT_TARGETS, TARGETS, Target
from pytest_pallas.errors import DeadlockError


@dataclass(frozen=True)
class Interpreter:
    """A backend that interprets kernels on simulated devices of the host.

    Attributes:
      name: the family.
      platform: whose kernels it interprets.
      parameters: ``parameters(races)`` gives what Pallas takes as ``interpret=``.
      simulated: the platform of the device that the kernel believes to be on.
      target: the chip it stands for; None is the platform's default.
    """

    name: str
    platform: str
    parameters: Callable[[bool], Any] = field(repr=False)
    simulated: str
    detects_races: bool
    target: Target | None = None
    kind: Kind = "interpreting"

    def available(self) -> str | None:
        """Always None: an interpreter needs nothing but the host's CPU."""
        return None

    def run(self, call: Call) -> Outcome:
        """Interpret a call; see ``Backend.run``.

        Races are looked for in kernels that use DMAs, semaphores or barriers, and in every call
        on several devices: others are sequential, and the detector costs about 40 % of the time.
        """
        from pytest_pallas.backends import execution
        from pytest_pallas.backends.tracing import jitted, split

        kernels: tuple[Any, ...] = ()
        detect = self.detects_races and call.races
        races = detect and (call.devices > 1 or not call.jit)
        if detect and not races:
            try:
                with self.context(races=False, fill=call.fill):
                    kernels = execution.trace(call, *split(call))
            except Exception as error:  # tracing runs the kernel's own code
                return Outcome(error=execution.readable(error))
            races = any(kernel.asynchronous for kernel in kernels)
        with _watchdog(call.timeout) as stopped, compat.printed_races() as printed:
            outcome = execution.execute(
                call,
                lambda: self.context(races=races, fill=call.fill),
                runner=jitted(quick=True) if call.jit else None,
                kernels=kernels,
                notes=("races: on",) if races else (),
            )
        if outcome.error is None and printed:
            outcome = dataclasses.replace(outcome, error=execution.race_error(printed[0]))
        if outcome.error is not None:
            execution.recover()
        if outcome.error is not None and stopped:
            # Each waiting device raised the stop as an error of its own callback.
            return dataclasses.replace(outcome, error=stopped[0])
        return outcome

    @property
    def fills(self) -> bool:
        """Whether it heeds ``Call.fill``: not if its parameters have memory start as zeros."""
        return getattr(self.parameters(False), "uninitialized_memory", "nan") == "nan"

    @contextmanager
    def context(self, *, races: bool, fill: str = "") -> Generator[None]:
        """Force this interpreter, on the host's CPU, for kernels that ask for a device kind."""
        import jax
        from jax.experimental.pallas import tpu as pltpu
        from jax.sharding import AbstractDevice, AbstractMesh

        target = self.target or TARGETS[DEFAULT_TARGETS[self.simulated]]
        device = AbstractDevice(
            device_kind=target.device_kind, num_cores=1, platform=target.platform
        )
        with ExitStack() as stack:
            stack.enter_context(jax.default_device(jax.devices("cpu")[0]))
            stack.enter_context(compat.mended_tpu_interpreter())
            stack.enter_context(compat.quiet_callbacks())
            stack.enter_context(fills.filled(fill))
            # One switch serves the TPU and the GPU interpreter; True is the portable one.
            stack.enter_context(pltpu.force_tpu_interpret_mode(self.parameters(races)))
            stack.enter_context(
                jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
            )
            yield


@contextmanager
def _watchdog(timeout: float) -> Generator[list[DeadlockError]]:
    """End a simulated device's wait for something that does not come.

    Yields a list that holds the error once the time is over.
    """
    stopped: list[DeadlockError] = []

    def stop() -> None:
        error = DeadlockError(
            f"the kernel did not finish within {timeout:g} s and was stopped. Does every wait on "
            "a semaphore, barrier or DMA have its signal, on every device? If the kernel is only "
            "slow, raise the limit with --pallas-timeout."
        )
        stopped.append(error)
        compat.fail_interpreters(error)

    timer = threading.Timer(timeout, stop)
    timer.daemon = True
    timer.start()
    try:
        yield stopped
    finally:
        timer.cancel()


def _portable(races: bool) -> Any:
    del races  # the portable interpreter is sequential
    return True


def _tpu(races: bool) -> Any:
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(
        detect_races=races, uninitialized_memory="nan", out_of_bounds_reads="raise"
    )


def _gpu(races: bool) -> Any:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return plgpu.InterpretGPUParams(
        detect_races=races, uninitialized_memory="nan", out_of_bounds_reads="raise"
    )


def interpret(target: Target | None = None) -> Interpreter:
    """Pallas' portable interpreter, which runs the kernel's arithmetic as HLO."""
    return Interpreter("interpret", "any", _portable, "tpu", detects_races=False, target=target)


def tpu_interpret(target: Target | None = None) -> Interpreter:
    """TPU interpret mode: simulated memories, DMAs, semaphores and devices."""
    return Interpreter("tpu-interpret", "tpu", _tpu, "tpu", detects_races=True, target=target)


def gpu_interpret(target: Target | None = None) -> Interpreter:
    """Mosaic GPU interpret mode: shared memory, barriers, asynchronous copies."""
    return Interpreter("gpu-interpret", "gpu", _gpu, "gpu", detects_races=True, target=target)
