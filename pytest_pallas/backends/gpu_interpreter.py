"""The backend ``gpu-interpret``: JAX's GPU interpreter, watched and mended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_pallas import compat
from pytest_pallas.backends import fills
from pytest_pallas.backends.probes import Probe, probed
from pytest_pallas.backends.protocol import Call, Kind, Outcome, chip_of
from pytest_pallas.backends.watchdog import watchdog
from pytest_pallas.backends.watching_gpu import ThreadWatch
from pytest_pallas.compilers import gpu_chips
from pytest_pallas.devices.targets import Target
from pytest_pallas.errors import RaceError
from pytest_pallas.findings import Access, Finding


@dataclass(frozen=True)
class GpuInterpreter:
    """Mosaic GPU interpret mode: shared memory, barriers, asynchronous copies.

    Attributes:
      target: the chip it stands for; None is the default.
      fills: that it heeds ``Call.fill``.
      probes: which of ``Call.probe`` it answers.
      detects_races: that it looks for races.
    """

    target: Target | None = None
    name: str = "gpu-interpret"
    platform: str = "gpu"
    kind: Kind = "interpreting"
    fills: bool = True
    probes: tuple[Probe, ...] = ("outputs", "separate")
    detects_races: bool = True

    def parameters(self, *, races: bool) -> Any:
        """What Pallas takes as ``interpret=``."""
        from jax.experimental.pallas import mosaic_gpu as plgpu

        return plgpu.InterpretGPUParams(
            detect_races=races, uninitialized_memory="nan", out_of_bounds_reads="raise"
        )

    def available(self) -> str | None:
        """Always None: an interpreter needs nothing but the host's CPU."""
        return None

    def run(self, call: Call) -> Outcome:
        """Interpret a call; see ``Backend.run``.

        Races are looked for in kernels that use barriers or asynchronous copies, and in every call
        on several devices: others are sequential, and the detector costs about 40 % of the time.
        """
        from pytest_pallas.backends import execution
        from pytest_pallas.backends.tracing import jitted, split

        kernels: tuple[Any, ...] = ()
        races = call.races and (call.devices > 1 or not call.jit)
        if call.races and not races:
            try:
                with self.context(races=False, fill=call.fill):
                    kernels = execution.trace(call, *split(call))
            except Exception as error:  # tracing runs the kernel's own code
                return Outcome(error=execution.readable(error))
            races = any(kernel.asynchronous for kernel in kernels)
        told: list[Any] = []
        threads = ThreadWatch()
        with (
            watchdog(call.timeout, threads) as stopped,
            compat.watched_threads(threads),
            compat.printed_races(),
            compat.races_collected() as found,
        ):
            outcome = execution.execute(
                call,
                lambda: self.context(
                    races=races, fill=call.fill, probe=call.probe, told=told.extend
                ),
                runner=jitted(quick=True) if call.jit else None,
                kernels=kernels,
            )
        outcome = dataclasses.replace(outcome, told=tuple(told))
        if outcome.error is not None:
            execution.recover()
            if stopped:  # each waiting thread raised the stop as an error of its own callback
                return dataclasses.replace(outcome, error=stopped[0])
        if found:
            error = RaceError.of(_race(found[0]))
            error.__cause__ = outcome.error
            return dataclasses.replace(outcome, error=error)
        return outcome

    @contextmanager
    def context(
        self,
        *,
        races: bool = False,
        fill: str = "",
        probe: Probe = "",
        told: Callable[[list[Any]], None] = lambda _: None,
    ) -> Generator[None]:
        """Force the interpreter, on the host's CPU, for kernels that ask for a device kind."""
        import jax
        from jax.experimental.pallas import tpu as pltpu
        from jax.sharding import AbstractDevice, AbstractMesh

        target = chip_of(self)
        device = AbstractDevice(
            device_kind=target.device_kind, num_cores=1, platform=target.platform
        )
        with ExitStack() as stack:
            stack.enter_context(jax.default_device(jax.devices("cpu")[0]))
            stack.enter_context(compat.meshes_of(device))
            stack.enter_context(compat.device_attributes(gpu_chips.attributes(target.name)))
            for mended in (
                compat.mended_gpu_interpreter,
                compat.negative_indices_refused,
                compat.gpu_bounds_named,
                compat.tma_windows_from_before,
                compat.barriers_checked,
                compat.wgmma_reads_checked,
                compat.quiet_callbacks,
            ):
                stack.enter_context(mended())
            stack.enter_context(fills.filled(fill))
            answers = stack.enter_context(probed(probe))
            # One switch serves the TPU and the GPU interpreter.
            stack.enter_context(pltpu.force_tpu_interpret_mode(self.parameters(races=races)))
            stack.enter_context(
                jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
            )
            yield
        told(answers)


def _race(accesses: tuple[Access, Access]) -> Finding:
    """The finding of two accesses that the interpreter found to be unordered."""
    return Finding(
        kind="race",
        message=f"race on {accesses[0].ref or 'memory'}: nothing orders two accesses",
        ref=accesses[0].ref,
        accesses=accesses,
    )


def gpu_interpret(target: Target | None = None) -> GpuInterpreter:
    """The GPU interpreter, for a chip."""
    return GpuInterpreter(target)
