"""``races``: two unordered accesses to the same memory, at least one of them a write."""

from __future__ import annotations

from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, under
from pytest_pallas.checks.schedule import requires_concurrency, requires_kernels, under_schedules
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import RaceError


@declare_sanitizer(
    "races",
    asks="is every access ordered with every write to the same place?",
    requires_backend=requires_concurrency,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
    watches="races",
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
    seconds = 0.0
    for schedule, outcome in under_schedules(context):
        seconds += outcome.seconds
        if isinstance(outcome.error, RaceError):
            raise under(schedule, outcome.error)
    return CheckResult(comparisons=(), seconds=seconds)
