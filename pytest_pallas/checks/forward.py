"""The output of one call: compared with the oracle, and with that of a call that must agree.

``forward`` asks the oracle. ``determinism`` calls the kernel again, ``jit`` calls it without jit,
and ``blocks`` with its default tuning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pallas_sim.errors import KernelError, PallasError, first_line
from pytest_pallas.backends.protocol import Outcome, Schedule
from pytest_pallas.checks import Program, declare_check
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
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.errors import NotApplicableError, facts_of
from pytest_pallas.grid.kernel_calls import one_program
from pytest_pallas.judge.judgement import bitwise_leaves
from pytest_pallas.judge.oracle import Expected
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec


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
    if not hasattr(context.backend, "run_on_part"):
        return ()
    made = call(context, context.kernel, context.arguments.args)
    for count in _PARTS:
        outcome: Outcome | None = cast("Any", context.backend).run_on_part(made, count)
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


#: Number of runs that are compared with the first. On a chip a run takes microseconds, and a race
#: that is usually right needs many.
REPEATS, ON_A_CHIP = 2, 19


#: Why the check does not apply to a kernel that is right and not deterministic.
_ANY_ORDER = "deterministic=False says that two right runs may differ in their last bits"


@declare_check(
    "determinism",
    asks="is a second call bitwise equal to the first?",
    requires_spec=lambda spec: None if spec.deterministic else _ANY_ORDER,
    example_fraction=0.5,
)
def determinism(context: CheckContext) -> CheckResult:
    """Run the kernel again and compare bit for bit with the first run.

    On the simulator each run has another seed, which determines the order of all concurrent steps.
    On a chip this order changes from run to run, too.

    Raises:
      KernelError: the kernel raised; the message has the seed.
      NotApplicableError: the call is not deterministic.
    """
    if not context.deterministic:
        raise NotApplicableError(_ANY_ORDER)
    first = run(context, context.kernel, context.arguments.args)
    comparisons = list[Comparison]()
    for repeat in range(ON_A_CHIP if context.backend.kind == "hardware" else REPEATS):
        schedule = Schedule(seed=repeat + 1)
        again = run(context, context.kernel, context.arguments.args, schedule=schedule)
        suffix = f" of run {repeat + 2} compared with run 1"
        if getattr(context.backend, "reorders", False):
            suffix += f", with {schedule}"
        comparisons += bitwise_leaves(flatten(again.values), flatten(first.values), suffix)
    return CheckResult(comparisons=comparisons, outcome=first, notes=first.notes)


@declare_check(
    "jit",
    asks="is the answer without jax.jit as good as with it?",
    example_fraction=0.125,
    tries_mutants=False,  # mutants are made in the trace of jit
)
def jit(context: CheckContext) -> CheckResult:
    """Run the kernel without jit, and compare it with the jitted one, bit for bit.

    Under jit, XLA fuses the operations around a kernel and rounds at other places, so different
    bits are no error. The unjitted output must be as close to the oracle as ``forward`` requires of
    the jitted one.

    Raises:
      NotApplicableError: the kernel cannot be jitted.
    """
    if not context.settings.jit:
        raise NotApplicableError(
            "the jit check needs a kernel that can be jitted, and jit=False says that this one "
            "cannot"
        )
    expected = expect(context)
    jitted = run(context, context.kernel, context.arguments.args)
    eager = run(context, context.kernel, context.arguments.args, jit=False)
    mine, theirs = flatten(eager.values), flatten(jitted.values)
    if [path for path, _ in mine] == [path for path, _ in theirs]:
        comparisons = bitwise_leaves(mine, theirs, " without jit")
        if all(comparison.passed for comparison in comparisons):
            return CheckResult(comparisons=comparisons, outcome=eager)
    return CheckResult(
        comparisons=judge(context, eager.values, expected, exact=exactly(context)),
        subject="without jax.jit",
        notes=(Note("not bitwise equal to the jitted call", "result"),),
    )


def _requires_tuning(spec: KernelSpec) -> str | None:
    """A spec must have two tunings to compare."""
    if callable(spec.inputs):
        return "the kernel runs on a mesh, so its tuning is known only when it runs"
    try:
        tuning = draw_once(spec.inputs).tuning
    except Exception:  # the validation of the spec reports it at collection
        return "its inputs cannot be drawn"
    if not tuning:
        return "its inputs draw no tuning"
    functions = spec.kernel.values() if isinstance(spec.kernel, Mapping) else (spec.kernel,)
    for function in functions:
        parameters = inspect.signature(function).parameters
        empty = inspect.Parameter.empty
        needed = [n for n in tuning if n in parameters and parameters[n].default is empty]
        if needed:
            return f"the kernel has no default for {', '.join(needed)}"
    return None


@declare_check(
    "blocks",
    asks="is the output with the default tuning as accurate as with the drawn one?",
    requires_spec=_requires_tuning,
    example_fraction=0.125,
    subjects=larger_first,
    varies_calls=True,
)
def blocks(context: CheckContext) -> CheckResult:
    """Run the kernel with its default tuning, then with the drawn one, and compare both.

    A spec draws small blocks, so that small arrays have many; users get the defaults. Two block
    sizes sum in different orders, so each must agree with the oracle: bitwise if the spec is exact
    and small integers were drawn. A kernel that raises with its default, such as one that requires
    a multiple of its block, is not compared.

    Raises:
      NotApplicableError: there is no tuning, the kernel rejects the arguments with its default
        tuning, or the output is right and there is one block with each tuning.
    """
    tuning = context.arguments.tuning
    if not tuning:
        raise NotApplicableError("the blocks check needs tuning=, such as block sizes")
    untuned = replace(context, arguments=replace(context.arguments, tuning={}))
    defaults = _defaults(context.kernel, tuning)
    shown = replace(context.arguments, tuning=defaults)
    try:
        default = run(untuned, context.kernel, context.arguments.args)
    except KernelError as error:
        if error.__cause__ is None or isinstance(error.__cause__, PallasError):
            facts_of(error).arguments = shown  # what a simulator found
            raise
        called = " ".join(f"{name}={value}" for name, value in defaults.items())
        raise NotApplicableError(
            f"with its default tuning{f' ({called})' if called else ''}, {first_line(error)}; draw "
            "arguments that the default accepts"
        ) from None
    first = judge(untuned, default.values, expect(untuned), exact=exactly(untuned))
    if not all(comparison.passed for comparison in first):
        subject = "default tuning instead of the drawn one"
        return CheckResult(comparisons=first, subject=subject, arguments=shown)
    drawn = run(context, context.kernel, context.arguments.args)
    second = judge(context, drawn.values, expect(context), exact=exactly(context))
    reason = one_program(default.kernels) and one_program(drawn.kernels)
    if reason and all(comparison.passed for comparison in second):
        raise NotApplicableError(f"with both tunings {reason}; draw larger inputs")
    return CheckResult(comparisons=[*first, *second], outcome=drawn)


def _defaults(kernel: Callable[..., Any], tuning: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default tuning of a kernel, as far as its signature shows it."""
    try:
        parameters = inspect.signature(kernel).parameters
    except (TypeError, ValueError):
        return {}
    defaults = {name: parameters[name].default for name in tuning if name in parameters}
    return {name: v for name, v in defaults.items() if v is not inspect.Parameter.empty}
