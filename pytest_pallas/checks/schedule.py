"""The sanitizers of schedules: ``schedule``, ``races``, ``dma`` and ``deadlock``.

``under_schedules`` runs the kernel. All four look at the same runs, so that the kernel runs once a
schedule, and not once a check. Where the proof of the first
run does not hold for all orders of threads and copies, these are run, within a budget; what they
leave to chance runs with seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_sim.errors import DeadlockError, PallasError
from pallas_sim.findings import OF_TRANSFERS
from pytest_pallas.backends.execution import digest
from pytest_pallas.backends.protocol import Backend, Call, Outcome, Schedule, label
from pytest_pallas.backends.tracing import identity
from pytest_pallas.budget import LastUsed
from pytest_pallas.checks import declare_sanitizer
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    call,
    count_run,
    orders_of_call,
    raise_error,
    under,
    witness_of_call,
    worst_failed,
)
from pytest_pallas.checks.metamorphic import identical
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import DmaError, NotApplicableError, RaceError, facts_of
from pytest_pallas.grid.kernel_calls import (
    KernelCall,
    grid_programs,
    has_parallel_dimension,
    one_step,
    parallel_programs,
)
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.record import Orders
from pytest_pallas.spec import KernelSpec

#: The errors that ``races``, ``deadlock`` and ``dma`` look for.
SANITIZED = (RaceError, DeadlockError, DmaError)

#: Seeds of the schedules that run after the default schedule, for what was not run in all orders.
SEEDS = (1, 2)

#: Why the sanitizers of schedules do not apply to a kernel.
SEQUENTIAL = (
    "no example starts a DMA, uses a semaphore or a barrier, or divides a parallel grid dimension "
    "(on a GPU: has several programs)"
)


#: The cache keeps at most this many runs, and at most this many bytes of their outputs.
_RUNS, _RUN_BYTES = 32, 1 << 27


@dataclass
class Runs:
    """Caches the last runs, so that the checks of a kernel share them."""

    _kept: LastUsed[Outcome] = field(default_factory=lambda: LastUsed(_RUNS, _RUN_BYTES))

    def get(self, context: CheckContext, schedule: Schedule) -> Outcome:
        """Return the outcome of the context's call under a schedule, with the race detector on.

        Runs the kernel unless the cache has this run.
        """
        arguments = context.arguments
        key = (
            identity(context.kernel),
            digest((arguments.args, dict(arguments.options), dict(arguments.tuning))),
            (label(context.backend), schedule, context.settings.devices, context.settings.jit),
        )
        outcome = self._kept.get(key)
        if outcome is None:
            outcome = context.backend.run(replace(_call(context), schedule=schedule))
            self._kept.add(key, outcome, outcome.nbytes)
        count_run(context, outcome)
        return outcome


def _call(context: CheckContext) -> Call:
    """Return the call of a context, which detects races and leaves copies and semaphores alone."""
    made = call(context, context.kernel, context.arguments.args)
    return made.with_settings(races=True, dma=False)


def under_schedules(context: CheckContext) -> Iterator[tuple[Schedule, Outcome]]:
    """Run the kernel under every schedule that can change its output; yield schedule and outcome.

    The default schedule comes first. If the kernel raises under it, no other schedule runs. Then
    come an order of threads and copies that is wrong, if exploring finds one, or seeds for what was
    not explored. With ``--pallas-witness``, its order is the only other one.

    Raises:
      PallasError: the first error of a run. The caller raises those that it looks for: one that is
        in ``SANITIZED`` comes after the last run.
      NotApplicableError: the kernel has only one order. Raised after the last run if the kernel has
        only one step: no second step is there for its copies to overlap with.
    """
    default = Schedule()
    first = context.runs.get(context, default)
    if not isinstance(first.error, SANITIZED):
        raise_error(context, first, default)
    kernels: Sequence[Any] = first.kernels
    asynchronous = any(kernel.asynchronous for kernel in kernels)
    witness = witness_of_call(context)
    explores = asynchronous and not witness
    exploration = _explored(context, first) if explores else None
    yield default, first
    raise_error(context, first, default)
    others = [Schedule(witness=witness)] if witness else schedules(context, kernels)
    if not others and not asynchronous:
        raise NotApplicableError(SEQUENTIAL)
    failed: tuple[Outcome, Schedule] | None = None
    for schedule, outcome in _reordered(context, first, others, exploration):
        yield schedule, outcome
        if outcome.error is not None:
            failed = failed or (outcome, schedule)
    if failed is not None:
        raise_error(context, *failed)
    reason = one_step(kernels) if context.settings.devices == 1 else None
    if reason is not None:  # checked after the runs: an error in the only step must be reported
        raise NotApplicableError(f"{reason}; draw larger inputs")


def _reordered(
    context: CheckContext, first: Outcome, others: Sequence[Schedule], exploration: Any
) -> Iterator[tuple[Schedule, Outcome]]:
    """Yield the runs after the default one, under other schedules.

    Args:
      context: the call.
      first: its run under the default schedule.
      others: the schedules without an exploration.
      exploration: the ``pallas_sim.Exploration`` of the call, or None.
    """
    confirmed = True
    # Orders that differ in rounding only are not explored.
    rounds = exploration is not None and any(r.kind == "sum" for r in exploration.reasons)
    if exploration is not None and exploration.verdict == "wrong":
        confirmed = exploration.confirmed
        if exploration.witness is None:
            error = RaceError.of(*exploration.findings)
            facts_of(error).unconfirmed = True
            yield Schedule(), Outcome(error=error, findings=exploration.findings)
            return
        others = [Schedule.of(exploration)]
        if exploration.differs:
            # From the first order of the exploration, which is another one than the default.
            plain = replace(exploration.witness, choices=())
            others.append(Schedule(witness=str(plain)))
    elif context.orders and context.orders[-1].proved and not first.by_seed and not rounds:
        others = [schedule for schedule in others if schedule.cores > 1]
    for schedule in others:
        outcome = context.runs.get(context, schedule)
        if outcome.error is not None and not confirmed:
            facts_of(outcome.error).unconfirmed = True
        yield replace(schedule, story=outcome.story), outcome


def _explored(context: CheckContext, first: Outcome) -> Any:
    """Explore the orders of a call unless its first run decides, and add them to the context.

    Returns:
      the ``pallas_sim.Exploration``; None without one.
    """
    wrong = first.error is not None or any(f.kind in OF_TRANSFERS for f in first.findings)
    exploration: Any = first.exploration
    if exploration is None and not (wrong or first.every_order):
        explore: Callable[[Call], Any] = getattr(context.backend, "explore", lambda _: None)
        exploration = explore(_call(context))
    if exploration is not None:
        context.orders.append(orders_of_call(exploration, context.settings.schedules))
    elif wrong or first.every_order:
        context.orders.append(Orders(proved=int(not wrong), wrong=int(wrong), runs=1, classes=1))
    return exploration


def raise_first(context: CheckContext, kind: type[PallasError]) -> CheckResult:
    """Run the kernel under every schedule, and raise its first error of a kind, or of another.

    Returns a result without comparisons if no schedule gives an error.
    """
    last: Outcome | None = None
    for schedule, outcome in under_schedules(context):
        if isinstance(outcome.error, kind):
            raise under(schedule, outcome.error)
        last = outcome
    return CheckResult(comparisons=(), outcome=last)


def requires_concurrency(backend: Backend) -> str | None:
    """Return the reason why a backend cannot find races, or None if it simulates concurrency."""
    if getattr(backend, "detects_races", False):
        return None
    return f"{backend.name} does not simulate concurrency"


def requires_schedules(backend: Backend) -> str | None:
    """Return the reason why a backend has no second order, or None if it has one."""
    return None if has_schedules(backend) else f"{backend.name} runs kernels in one order only"


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why schedules make no difference to the kernels of a call, or None.

    It does not count the programs of a parallel dimension: their number depends on shapes, and
    the answer must hold for all shapes (see ``Check.requires_kernels``).
    """
    del spec
    if any(kernel.asynchronous for kernel in kernels):
        return None
    if not has_schedules(backend):
        return SEQUENTIAL
    if backend.platform == "gpu":
        reorders = any(grid_programs(kernel.eqn) != 1 for kernel in kernels)
    else:
        reorders = any(has_parallel_dimension(kernel.eqn) for kernel in kernels)
    return None if reorders else SEQUENTIAL


def has_schedules(backend: Backend) -> bool:
    """Return whether a backend applies ``Call.schedule``: the simulator does."""
    return bool(getattr(backend, "reorders", False))


def schedules(context: CheckContext, kernels: Sequence[Any]) -> list[Schedule]:
    """Return the schedules that can reorder these kernels on the backend, without the default."""
    if not has_schedules(context.backend):
        return []
    gpu = context.backend.platform == "gpu"
    # A GPU may run all programs of a grid at once; a TPU only those of parallel dimensions.
    count = grid_programs if gpu else parallel_programs
    # The number is None if an operand gives a size of the grid: then there may be two programs.
    programs = max((count(kernel.eqn) or 2 for kernel in kernels), default=1)
    others: list[Schedule] = []
    if programs > 1 or any(kernel.asynchronous for kernel in kernels):
        # A seed picks one order of copies, cores, devices and parallel programs.
        others = [Schedule(seed=seed) for seed in SEEDS]
    target = context.backend.target
    if programs > 1 and not gpu and (target is None or target.cores > 1):
        others.append(Schedule(cores=2))
    return others


#: What the sanitizers of schedules have in common.
_SHARED: Mapping[str, Any] = {
    "requires_kernels": requires_kernels,
    "example_fraction": 0.25,
    "subjects": larger_first,
    "every_mesh": True,
}


@declare_sanitizer(
    "schedule",
    asks="is the output bitwise equal in every legal order of DMAs and parallel programs?",
    requires_backend=requires_schedules,
    **_SHARED,
)
def schedule(context: CheckContext) -> CheckResult:
    """Compare the outputs under several schedules bit for bit with those under the default.

    Each seed picks one order of copies, devices, cores and programs along parallel grid dimensions.
    On a TPU, unless the target has only one core, one more run divides such programs over two
    cores.

    Raises:
      NotApplicableError: there is only one order.
      KernelError: the kernel raised under a schedule.
    """
    runs = under_schedules(context)
    _, first = next(runs)
    comparisons: dict[Schedule, Sequence[Comparison]] = {}
    for reordered, outcome in runs:
        raise_error(context, outcome, reordered)
        suffix = f", with {reordered}, compared with the default schedule"
        comparisons[reordered] = identical(
            context, outcome.values, first.values, suffix, change=f"with {reordered}"
        )
    if not comparisons and not context.orders:
        raise NotApplicableError("there is only one order in which the kernel can run")
    every = [comparison for several in comparisons.values() for comparison in several]
    worst = worst_failed(every)
    wrong = (order for order, several in comparisons.items() if any(c is worst for c in several))
    return CheckResult(comparisons=every, outcome=first, schedule=next(wrong, None))


@declare_sanitizer(
    "races",
    asks="is every access ordered with every write to the same place?",
    requires_backend=requires_concurrency,
    watches="races",
    **_SHARED,
)
def races(context: CheckContext) -> CheckResult:
    """Run the kernel under several schedules, each with the race detector.

    The detector compares vector clocks (Lamport, 1978), so it finds races although the output is
    right. It sees only accesses that happen in a run, which depend on the schedule: therefore there
    are several.

    Raises:
      NotApplicableError: the kernel has no concurrency.
      RaceError: with both accesses, their lines, programs and devices, and the buffer.
    """
    return raise_first(context, RaceError)


@declare_sanitizer(
    "deadlock",
    asks="does every wait receive its signal?",
    requires_backend=requires_concurrency,
    **_SHARED,
)
def deadlock(context: CheckContext) -> CheckResult:
    """Run the kernel under several schedules, each of which must finish.

    A run stops as soon as every core is blocked and no signal is pending; a kernel that runs
    forever otherwise stops after ``--pallas-timeout``.

    Raises:
      NotApplicableError: the kernel never waits.
      DeadlockError: with the device, semaphore, line and program of each wait.
    """
    return raise_first(context, DeadlockError)


@declare_sanitizer(
    "dma",
    asks="is every DMA waited for, every semaphore 0 at the end, every device ready?",
    requires_backend=requires_schedules,
    watches="dma",
    **_SHARED,
)
def dma(context: CheckContext) -> CheckResult:
    """Check every DMA and semaphore of a kernel, under several schedules.

    The kernel must wait for every DMA that it starts, on both sides. Every semaphore must be 0 at
    the end, because the next kernel needs that. No device may copy to another device, or signal its
    semaphore, before it knows that the other device has started the kernel.

    Raises:
      NotApplicableError: the kernel has no DMAs and no semaphores.
      DmaError: with every line, program and device.
    """
    for schedule, outcome in under_schedules(context):
        findings = [finding for finding in outcome.findings if finding.kind in OF_TRANSFERS]
        if findings:
            raise under(schedule, DmaError.of(*findings))
    return CheckResult(comparisons=())
