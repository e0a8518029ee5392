"""Checks on compiling backends: they compile the program of a check and do not execute it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pytest_pallas.backends import Call, Outcome
from pytest_pallas.checks.check import Check
from pytest_pallas.checks.context import CheckContext, CheckResult, call
from pytest_pallas.notes import Note


def start(check: Check, context: CheckContext) -> Callable[[], Outcome] | None:
    """Start to compile the program of a check; the returned function waits for the outcome.

    None if the check has nothing to compile, or the backend cannot start a compilation in advance.
    """
    begin = getattr(context.backend, "start", None)
    if check.program is None or begin is None:
        return None
    return begin(_call(check, context))


def _call(check: Check, context: CheckContext) -> Call:
    """The call of a check's program; a gradient may need no output of the kernel."""
    assert check.program is not None
    made = call(context, *check.program(context))
    return dataclasses.replace(made, needs_kernel=check.differentiates != "only")


def compiled(check: Check, context: CheckContext) -> CheckResult:
    """Compile the program of a check. The result's outcome has the report and the error."""
    if check.program is None:
        return CheckResult(comparisons=(), notes=(Note("nothing to compile", "run"),))
    outcome = context.backend.run(_call(check, context))
    if outcome.report is not None:
        report = dataclasses.replace(outcome.report, typical=context.typical)
        outcome = dataclasses.replace(outcome, report=report)
    return CheckResult(
        comparisons=(), outcome=outcome, seconds=outcome.seconds, notes=outcome.notes
    )
