"""``deadlock``: a wait for a signal that never comes."""

from __future__ import annotations

from pallas_sim.errors import DeadlockError
from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.checks.schedule import raise_first, requires_concurrency, requires_kernels
from pytest_pallas.draw.arguments import larger_first


@declare_sanitizer(
    "deadlock",
    asks="does every wait receive its signal?",
    requires_backend=requires_concurrency,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
    every_mesh=True,
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
