"""``schedule``: the output is bitwise equal in every legal order of DMAs and parallel programs.

The runs under several schedules, on which ``races``, ``dma`` and ``deadlock`` look for errors, are
made here too (``under_schedules``), once for all four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_sim.errors import DeadlockError, PallasError
from pytest_pallas.backends.execution import digest
from pytest_pallas.backends.protocol import Backend, Outcome, Schedule, label
from pytest_pallas.backends.tracing import identity
from pytest_pallas.budget import LastUsed
from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, as_kernel_error, call, under
from pytest_pallas.checks.metamorphic import identical
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import DmaError, NotApplicableError, RaceError
from pytest_pallas.grid.kernel_calls import (
    KernelCall,
    grid_programs,
    has_parallel_dimension,
    one_step,
    parallel_programs,
)
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.spec import KernelSpec

#: Errors that sanitizers report.
SANITIZED = (RaceError, DeadlockError, DmaError)

#: Seeds of schedules, besides the default schedule.
SEEDS = (1, 2)

#: Why the sanitizers of schedules do not apply to a kernel.
SEQUENTIAL = (
    "no example starts a DMA, uses a semaphore or a barrier, or divides a parallel grid dimension "
    "(on a GPU: has several programs)"
)


#: Limits on the runs that are kept: on their number, and on their bytes.
_RUNS, _RUN_BYTES = 32, 1 << 27


@dataclass
class Runs:
    """Cache of the last runs, which the sanitizers share."""

    _kept: LastUsed[Outcome] = field(default_factory=lambda: LastUsed(_RUNS, _RUN_BYTES))

    def get(self, context: CheckContext, schedule: Schedule) -> Outcome:
        """Return the kernel's run on the context's backend, with the race detector."""
        arguments = context.arguments
        key = (
            identity(context.kernel),
            digest((arguments.args, dict(arguments.options), dict(arguments.tuning))),
            (label(context.backend), schedule, context.settings.devices, context.settings.jit),
        )
        outcome = self._kept.get(key)
        if outcome is None:
            made = call(context, context.kernel, arguments.args)
            outcome = context.backend.run(
                replace(made.with_settings(races=True, dma=False), schedule=schedule)
            )
            self._kept.add(key, outcome, outcome.nbytes)
        context.run_seconds.append(outcome.seconds)
        return outcome


def under_schedules(context: CheckContext) -> Iterator[tuple[Schedule, Outcome]]:
    """Yield the kernel's runs under every schedule that can make a difference, the default first.

    It stops after the first run if the kernel raises there.

    Raises:
      NotApplicableError: there is only one order; or the kernel raised an error that is not a
        sanitizer's; or, after the last run, the kernel had only one step, in which copies overlap
        with nothing.
    """
    plain = Schedule()
    first = context.runs.get(context, plain)
    if first.error is not None and not isinstance(first.error, SANITIZED):
        raise NotApplicableError("the kernel raised; see `forward`")
    kernels: Sequence[Any] = first.kernels
    others = [] if first.error is not None else schedules(context, kernels)
    yield plain, first
    if first.error is not None:
        return
    if not others and not any(kernel.asynchronous for kernel in kernels):
        raise NotApplicableError(SEQUENTIAL)
    for schedule in others:
        yield schedule, context.runs.get(context, schedule)
    reason = one_step(kernels) if context.settings.devices == 1 else None
    if reason is not None:  # at the end, because an error in a single step must be reported
        raise NotApplicableError(f"{reason}; draw larger inputs")


def raise_first(context: CheckContext, kind: type[PallasError]) -> CheckResult:
    """Run the kernel under every schedule, and raise its first error of a kind."""
    for schedule, outcome in under_schedules(context):
        if isinstance(outcome.error, kind):
            raise under(schedule, outcome.error)
    return CheckResult(comparisons=())


def requires_concurrency(backend: Backend) -> str | None:
    """A backend must simulate concurrency."""
    if getattr(backend, "detects_races", False):
        return None
    return f"{backend.name} does not simulate concurrency"


def requires_schedules(backend: Backend) -> str | None:
    """A backend must run a kernel in more than one order."""
    return None if has_schedules(backend) else f"{backend.name} runs kernels in one order only"


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why schedules make no difference to the kernels of a call, or None.

    It does not count the programs of a parallel dimension, because that depends on shapes.
    """
    del spec
    if any(kernel.asynchronous for kernel in kernels):
        return None
    if not has_schedules(backend):
        return SEQUENTIAL
    if backend.platform == "gpu":
        several = any(grid_programs(kernel.eqn) != 1 for kernel in kernels)
    else:
        several = any(has_parallel_dimension(kernel.eqn) for kernel in kernels)
    return None if several else SEQUENTIAL


def has_schedules(backend: Backend) -> bool:
    """Return whether a backend applies ``Call.schedule``: the simulator does."""
    return bool(getattr(backend, "reorders", False))


def schedules(context: CheckContext, kernels: Sequence[Any]) -> list[Schedule]:
    """Return the schedules, besides the default, in which the backend can run these kernels."""
    if not has_schedules(context.backend):
        return []
    gpu = context.backend.platform == "gpu"  # backends that run all programs of a grid at once
    count = grid_programs if gpu else parallel_programs
    programs = max((count(kernel.eqn) or 2 for kernel in kernels), default=1)
    others: list[Schedule] = []
    if programs > 1 or any(kernel.asynchronous for kernel in kernels):
        # A seed determines the order of copies, cores, devices and parallel programs.
        others = [Schedule(seed=seed) for seed in SEEDS]
    target = context.backend.target
    if programs > 1 and not gpu and (target is None or target.cores > 1):
        others.append(Schedule(cores=2))
    return others


@declare_sanitizer(
    "schedule",
    asks="is the output bitwise equal in every legal order of DMAs and parallel programs?",
    requires_backend=requires_schedules,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
)
def schedule(context: CheckContext) -> CheckResult:
    """Run the kernel under several schedules and compare bit for bit with the first.

    Each seed gives an order of copies, devices, cores and programs along parallel grid dimensions.
    If the chip has two cores, such programs are also divided over them.

    Raises:
      NotApplicableError: there is only one order.
      KernelError: the kernel raised under a schedule, and not under the first.
    """
    runs = under_schedules(context)
    _, first = next(runs)
    if first.error is not None:
        raise NotApplicableError("the kernel raised; see `forward`")
    comparisons, others = list[Comparison](), 0
    for other, outcome in runs:
        others += 1
        if outcome.error is not None:
            raise under(other, as_kernel_error(outcome.error))
        suffix = f", with {other}, compared with the default schedule"
        comparisons += identical(
            context, outcome.values, first.values, suffix, change=f"with {other}"
        )
    if not others:
        raise NotApplicableError("there is only one order in which the kernel can run")
    return CheckResult(comparisons=comparisons, outcome=first)
