"""``forward``: compare the kernel's output with the oracle."""

from __future__ import annotations

from dataclasses import replace

from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.checks.check import Program, declare_check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparedOutputs,
    exactly,
    expect,
    judge,
    run,
    witness_of_call,
)
from pytest_pallas.judge.references import flatten


def program(context: CheckContext) -> Program:
    """Return the program that a compiling backend compiles."""
    return context.kernel, context.arguments.args


@declare_check(
    "forward",
    asks="is the output as close to the oracle as the jnp baseline?",
    program=program,
    base=True,
    every_mesh=True,
)
def forward(context: CheckContext) -> CheckResult:
    """Run the kernel once; return the comparison of every output with the oracle."""
    schedule = Schedule(witness=witness_of_call(context))
    outcome = run(context, context.kernel, context.arguments.args, shards=True, schedule=schedule)
    expected = expect(context)
    comparisons = judge(context, outcome.values, expected, exact=exactly(context))
    return CheckResult(
        comparisons=comparisons,
        outcome=outcome,
        notes=outcome.notes,
        answer=ComparedOutputs(flatten(outcome.values), expected, context),
        schedule=replace(schedule, story=outcome.story),
    )
