"""``races``: two unordered accesses to the same memory, at least one of them a write."""

from __future__ import annotations

from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.checks.schedule import raise_first, requires_concurrency, requires_kernels
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import RaceError


@declare_sanitizer(
    "races",
    asks="is every access ordered with every write to the same place?",
    requires_backend=requires_concurrency,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
    every_mesh=True,
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
    return raise_first(context, RaceError)
