"""``determinism``: repeated calls are bitwise equal, in whatever order concurrent steps run."""

from __future__ import annotations

from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.judge.judgement import bitwise_leaves
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.spec import KernelSpec

#: Number of runs that are compared with the first. On a chip a run takes microseconds, and a race
#: that is usually right needs many.
REPEATS, ON_A_CHIP = 2, 19


#: Why the check does not apply to a kernel that is right and not deterministic.
_ANY_ORDER = "deterministic=False says that two right runs may differ in their last bits"


def requires_spec(spec: KernelSpec) -> str | None:
    """Two right runs of the kernel are bitwise equal."""
    return None if spec.deterministic else _ANY_ORDER


@declare_check(
    "determinism",
    asks="is a second call bitwise equal to the first?",
    requires_spec=requires_spec,
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
