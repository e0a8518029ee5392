"""``forward``: the kernel's answer against the oracle."""

from __future__ import annotations

from pytest_pallas.checks.check import Program
from pytest_pallas.checks.trial import (
    Answer,
    Finding,
    Trial,
    anticipate,
    exactly,
    expect,
    judge,
    run,
)
from pytest_pallas.oracle import flatten


def forward(trial: Trial) -> Finding:
    """Run the kernel once and judge every output."""
    anticipate(trial)
    outcome = run(trial, trial.kernel, trial.arguments.args)
    expected = expect(trial)
    comparisons = judge(trial, outcome.values, expected, exact=exactly(trial))
    return Finding(
        comparisons=comparisons,
        outcome=outcome,
        seconds=outcome.seconds,
        notes=outcome.notes,
        answer=Answer(flatten(outcome.values), expected),
    )


def program(trial: Trial) -> Program:
    """What a compiling backend compiles."""
    return trial.kernel, trial.arguments.args
