"""``forward``: the kernel's answer against the oracle."""

from __future__ import annotations

from pytest_pallas.checks.check import Program, check
from pytest_pallas.checks.trial import (
    Answer,
    Trial,
    TrialResult,
    exactly,
    expect,
    judge,
    run,
)
from pytest_pallas.oracle.expected import flatten


def program(trial: Trial) -> Program:
    """What a compiling backend compiles."""
    return trial.kernel, trial.arguments.args


@check(
    "forward",
    asks="is the answer as close to the oracle as the jnp baseline's?",
    program=program,
    base=True,
)
def forward(trial: Trial) -> TrialResult:
    """Run the kernel once and judge every output."""
    outcome = run(trial, trial.kernel, trial.arguments.args)
    expected = expect(trial)
    comparisons = judge(trial, outcome.values, expected, exact=exactly(trial))
    return TrialResult(
        comparisons=comparisons,
        outcome=outcome,
        seconds=outcome.seconds,
        notes=outcome.notes,
        answer=Answer(flatten(outcome.values), expected),
    )
