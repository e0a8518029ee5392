"""``races``: two accesses to one place that nothing orders, and one of them writes."""

from __future__ import annotations

from pytest_pallas.checks.trial import Finding, Trial
from pytest_pallas.errors import RaceError
from pytest_pallas.sanitizers.runs import under, under_schedules


def races(trial: Trial) -> Finding:
    """Run the kernel under several schedules with the interpreter's race detector.

    The detector compares vector clocks (Lamport, 1978), so that a race shows although the numbers
    are right; but only of accesses that happened, in an order that leaves a trace: hence several.

    Raises:
      NotApplicableError: nothing in the kernel happens at the same time.
      RaceError: with both accesses, their lines, programs and devices, and the buffer.
    """
    seconds = 0.0
    for schedule, outcome in under_schedules(trial):
        seconds += outcome.seconds
        if isinstance(outcome.error, RaceError):
            raise under(schedule, outcome.error)
    return Finding(comparisons=(), seconds=seconds, notes=("races: on",))
