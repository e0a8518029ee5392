"""``jit``: the kernel computes the same without ``jax.jit``."""

from __future__ import annotations

from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, expect, judge, run
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.judge.judgement import bitwise_leaves
from pytest_pallas.judge.references import flatten
from pytest_pallas.record import Note


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
