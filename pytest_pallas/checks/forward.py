"""``forward``: compare the kernel's output with the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.checks.check import Program, declare_check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparedOutputs,
    as_kernel_error,
    call,
    count_run,
    exactly,
    expect,
    judge,
    run,
    witness_of_call,
)
from pytest_pallas.judge.oracle import Expected
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Comparison


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
    """Run the kernel once; return the comparison of every output with the oracle.

    A kernel that asks a simulated GPU for its number of multiprocessors is run once more, on a part
    of it.
    """
    schedule = Schedule(witness=witness_of_call(context))
    outcome = run(context, context.kernel, context.arguments.args, shards=True, schedule=schedule)
    expected = expect(context)
    comparisons = [
        *judge(context, outcome.values, expected, exact=exactly(context)),
        *(() if schedule.witness else _on_part(context, expected)),
    ]
    return CheckResult(
        comparisons=comparisons,
        outcome=outcome,
        notes=outcome.notes,
        answer=ComparedOutputs(flatten(outcome.values), expected, context),
        schedule=replace(schedule, story=outcome.story),
    )


#: Multiprocessors of a part of a GPU: as few as there may be, and those of the smallest part of an
#: H100 or B200 (NVIDIA's MIG user guide), which holds any cluster.
_PARTS = (4, 16)


def _on_part(context: CheckContext, expected: Expected) -> Sequence[Comparison]:
    """Run the kernel on a GPU with few multiprocessors, and compare; none if it does not ask.

    Raises:
      KernelError: the kernel raised; the message has the number.
    """
    simulate = getattr(context.backend, "run_on_part", None)
    made = call(context, context.kernel, context.arguments.args)
    for count in () if simulate is None else _PARTS:
        outcome = simulate(made, count)
        if outcome is None:
            continue
        count_run(context, outcome)
        where = f"on a GPU with {count} multiprocessors"
        if outcome.error is not None:
            error = as_kernel_error(outcome.error)
            raise error.with_message(f"{error}\n  {where}") from error.__cause__
        return [
            compared
            if compared.explanation is None
            else replace(compared, explanation=compared.explanation.under(where))
            for compared in judge(context, outcome.values, expected, exact=exactly(context))
        ]
    return ()
