"""The interpreting backends: ``interpret``, ``tpu-interpret`` and ``gpu-interpret``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas import compat
from pytest_pallas.backends import fills
from pytest_pallas.backends.probes import Probe, probed
from pytest_pallas.backends.protocol import Call, Kind, Outcome
from pytest_pallas.backends.schedules import Schedule
from pytest_pallas.backends.watchdog import watchdog
from pytest_pallas.backends.watching import Watch, race
from pytest_pallas.backends.watching_gpu import ThreadWatch
from pytest_pallas.compilers import gpu_chips
from pytest_pallas.devices.targets import DEFAULT_TARGETS, TARGETS, Target
from pytest_pallas.errors import DmaError, RaceError


@dataclass(frozen=True)
class Interpreter:
    """A backend that interprets kernels on simulated devices of the host.

    Attributes:
      name: the family.
      platform: whose kernels it interprets.
      parameters: ``parameters(races, schedule)`` gives what Pallas takes as ``interpret=``.
      simulated: the platform of the device that the kernel believes to be on.
      target: the chip it stands for; None is the platform's default.
    """

    name: str
    platform: str
    parameters: Callable[[bool, Schedule], Any] = field(repr=False)
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
                with self.context(races=False, fill=call.fill, schedule=call.schedule):
                    kernels = execution.trace(call, *split(call))
            except Exception as error:  # tracing runs the kernel's own code
                return Outcome(error=execution.readable(error))
            races = any(kernel.asynchronous for kernel in kernels)
        watch = Watch(
            races=races, dma=call.schedule.dma, slow=call.schedule.slow, forgets=call.forget
        )
        told: list[Any] = []
        threads = ThreadWatch()
        with (
            watchdog(call.timeout, watch, threads) as stopped,
            compat.watched_threads(threads),
            compat.printed_races(),
            compat.races_collected() as races_found,
        ):
            outcome = execution.execute(
                call,
                lambda: self.context(
                    races=races,
                    fill=call.fill,
                    schedule=call.schedule,
                    watch=watch,
                    probe=call.probe,
                    told=told.extend,
                ),
                runner=jitted(quick=True) if call.jit else None,
                kernels=kernels,
                notes=("races: on",) if races else (),
            )
        outcome = dataclasses.replace(
            outcome,
            findings=tuple(watch.findings),
            told=tuple(told),
            notes=(*outcome.notes, *self._notes(outcome)),
        )
        if races_found and isinstance(outcome.error, RaceError | None):
            found = RaceError.of(race(watch.kernel, races_found[0]))
            found.__cause__ = outcome.error and outcome.error.__cause__
            outcome = dataclasses.replace(outcome, error=found)
        if call.dma and (watch.early or (outcome.error is None and outcome.findings)):
            # Who reaches a device too early may find nothing there yet, and raise for that.
            outcome = dataclasses.replace(outcome, error=DmaError.of(*outcome.findings))
        if outcome.error is not None:
            execution.recover()
        if outcome.error is not None and stopped:
            # Each waiting device raised the stop as an error of its own callback.
            return dataclasses.replace(outcome, error=stopped[0])
        return outcome

    def _notes(self, outcome: Outcome) -> tuple[str, ...]:
        """What a run depended on besides the interpreter."""
        if self.name != "tpu-interpret":
            return ()
        names = sorted({name for each in outcome.kernels for name in each.simulated})
        return (f"simulated by pytest-pallas: {', '.join(names)}",) if names else ()

    @property
    def fills(self) -> bool:
        """Whether it heeds ``Call.fill``: not if its parameters have memory start as zeros."""
        return getattr(self.parameters(False, Schedule()), "uninitialized_memory", "nan") == "nan"

    @contextmanager
    def context(
        self,
        *,
        races: bool,
        fill: str = "",
        schedule: Schedule | None = None,
        watch: Watch | None = None,
        probe: Probe = "",
        told: Callable[[list[Any]], None] = lambda _: None,
    ) -> Generator[None]:
        """Force this interpreter, on the host's CPU, for kernels that ask for a device kind."""
        import jax
        from jax.experimental.pallas import tpu as pltpu
        from jax.sharding import AbstractDevice, AbstractMesh

        from pytest_pallas.backends.tracing import QUICK

        schedule = schedule or Schedule()
        target = self.target or TARGETS[DEFAULT_TARGETS[self.simulated]]
        device = AbstractDevice(
            device_kind=target.device_kind, num_cores=1, platform=target.platform
        )
        with ExitStack() as stack:
            stack.enter_context(jax.default_device(jax.devices("cpu")[0]))
            stack.enter_context(compat.sparse_core_meshes())
            stack.enter_context(compat.mended_tpu_interpreter())
            stack.enter_context(compat.negative_indices_refused())
            stack.enter_context(compat.watchable())
            stack.enter_context(compat.missing_operations())
            stack.enter_context(compat.masked_loads_unspecified())
            stack.enter_context(compat.clocks_for_dmas())
            stack.enter_context(compat.gpu_bounds_named())
            if watch is not None:
                stack.enter_context(compat.watched(watch))
            stack.enter_context(compat.cores_in_threads(QUICK))
            stack.enter_context(compat.meshes_of(device))
            if target.platform == "gpu":
                stack.enter_context(compat.device_attributes(gpu_chips.attributes(target.name)))
                stack.enter_context(compat.mended_gpu_interpreter())
                stack.enter_context(compat.tma_windows_from_before())
                stack.enter_context(compat.barriers_checked())
                stack.enter_context(compat.wgmma_reads_checked())
            if schedule.order == "oldest":
                stack.enter_context(compat.oldest_dma_first())
            stack.enter_context(compat.quiet_callbacks())
            stack.enter_context(compat.quick_callbacks())
            stack.enter_context(fills.filled(fill))
            answers = stack.enter_context(probed(probe))
            # One switch serves the TPU and the GPU interpreter; True is the portable one.
            stack.enter_context(pltpu.force_tpu_interpret_mode(self.parameters(races, schedule)))
            stack.enter_context(
                jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
            )
            yield
        told(answers)


def _portable(races: bool, schedule: Schedule) -> Any:
    del races, schedule  # the portable interpreter is sequential
    return True


def _tpu(races: bool, schedule: Schedule) -> Any:
    del races  # the watch says so, and when DMAs are executed: neither is part of what is traced
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(
        uninitialized_memory="nan",
        out_of_bounds_reads="raise",
        random_seed=schedule.seed or None,
        num_cores_or_threads=schedule.cores,
    )


def _gpu(races: bool, schedule: Schedule) -> Any:
    del schedule  # clusters in order, copies at once
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
