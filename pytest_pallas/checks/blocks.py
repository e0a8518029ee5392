"""``blocks``: the output with the default tuning is as accurate as with the drawn one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pallas_sim.errors import KernelError, PallasError, first_line
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, expect, judge, run
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.errors import NotApplicableError, facts_of
from pytest_pallas.grid.kernel_calls import one_program
from pytest_pallas.spec import KernelSpec


def requires_spec(spec: KernelSpec) -> str | None:
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
    requires_spec=requires_spec,
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
