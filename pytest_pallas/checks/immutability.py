"""``immutability``: the kernel does not change its inputs."""

from __future__ import annotations

import jax

from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.errors import MismatchError
from pytest_pallas.grid.kernel_calls import mutated_operands
from pytest_pallas.judge.judgement import bitwise


@declare_check(
    "immutability",
    asks="are the inputs unchanged?",
    example_fraction=0.25,
)
def immutability(context: CheckContext) -> CheckResult:
    """Run the kernel without jit, and compare the inputs before and after.

    An interpreter passes copies of the inputs to a kernel, and on a chip a write to an input block
    may or may not reach the array. Therefore the check also looks in the kernel's jaxpr for writes
    to the ref of an input that is not aliased to an output.

    Raises:
      MismatchError: an input was donated, or its ref or a window of it is written.
    """
    traced = run(context, context.kernel, context.arguments.args)
    for call in traced.kernels:
        for operand in mutated_operands(call):
            raise MismatchError(
                f"{call.name} ({call.source}) writes to the ref of its operand {operand}, which "
                "is not aliased to an output. The values that the next grid step and the caller "
                "see depend on the chip. Copy into a scratch buffer, or declare "
                "input_output_aliases."
            )
    for finding in traced.findings:
        if (
            finding.kind == "input-write" and not finding.dropped
        ):  # of a window of emit_pipeline, which is no operand
            error = MismatchError(str(finding))
            error.findings = (finding,)
            raise error
    outcome = run(context, context.kernel, context.arguments.args, jit=False)
    before = [
        to_numpy(leaf) for leaf in jax.tree.leaves(context.arguments.args) if hasattr(leaf, "dtype")
    ]
    comparisons = []
    for position, (old, new) in enumerate(zip(before, outcome.inputs or (), strict=True)):
        if new is None:
            raise MismatchError(
                f"input {position} was deleted: the function donates its buffer (donate_argnums), "
                "so the caller cannot use it again."
            )
        comparisons.append(bitwise(new, old, where=f"input {position} after the call"))
    return CheckResult(comparisons=comparisons)
