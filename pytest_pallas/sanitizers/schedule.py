"""``schedule``: the output is bitwise equal in every legal order of DMAs and parallel programs."""

from __future__ import annotations

from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, as_kernel_error, under
from pytest_pallas.checks.rerun import identical
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.numerics import Comparison
from pytest_pallas.sanitizers.runs import (
    requires_kernels,
    requires_schedules,
    under_schedules,
)
from pytest_pallas.strategies.declared import larger_first


@declare_sanitizer(
    "schedule",
    asks="is the output bitwise equal in every legal order of DMAs and parallel programs?",
    requires_backend=requires_schedules,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
)
def schedule(context: CheckContext) -> CheckResult:
    """Run the kernel under several schedules and compare bit for bit with the first.

    Each seed gives an order of copies, devices, cores and programs along parallel grid dimensions.
    If the chip has two cores, such programs are also divided over them.

    Raises:
      NotApplicableError: there is only one order.
      KernelError: the kernel raised under a schedule, and not under the first.
    """
    runs = under_schedules(context)
    _, first = next(runs)
    if first.error is not None:
        raise NotApplicableError("the kernel raised; see `forward`")
    seconds, comparisons, others = first.seconds, list[Comparison](), 0
    for other, outcome in runs:
        others += 1
        seconds += outcome.seconds
        if outcome.error is not None:
            raise under(other, as_kernel_error(outcome.error))
        words = f", with {other}, compared with the default schedule"
        comparisons += identical(
            context, outcome.values, first.values, words, change=f"with {other}"
        )
    if not others:
        raise NotApplicableError("there is only one order in which the kernel can run")
    return CheckResult(comparisons=comparisons, outcome=first, seconds=seconds)
