"""Checks on compiling backends: the program of a check is compiled, and nothing is executed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pytest_pallas.backends import Outcome
from pytest_pallas.checks.check import Check
from pytest_pallas.checks.trial import Trial, TrialResult, call
from pytest_pallas.notes import Note


def start(check: Check, trial: Trial) -> Callable[[], Outcome] | None:
    """Begin to compile the program of a check; the result waits for the end.

    None if the check has nothing to compile, or the backend of a project cannot be started ahead.
    """
    begin = getattr(trial.backend, "start", None)
    if check.program is None or begin is None:
        return None
    return begin(call(trial, *check.program(trial)))


def compiled(check: Check, trial: Trial) -> TrialResult:
    """Compile the program of a check. The finding's outcome holds the report, and the error."""
    if check.program is None:
        return TrialResult(comparisons=(), notes=(Note("nothing to compile", "run"),))
    outcome = trial.backend.run(call(trial, *check.program(trial)))
    if outcome.report is not None:
        report = dataclasses.replace(outcome.report, typical=trial.typical)
        outcome = dataclasses.replace(outcome, report=report)
    return TrialResult(
        comparisons=(), outcome=outcome, seconds=outcome.seconds, notes=outcome.notes
    )
