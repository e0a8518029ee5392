"""The memory of operands.

``donation``: an operand that shares memory with an output is used again, or read late.
``immutability``: the kernel does not change its inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pallas_sim.errors import Explanation, Fact
from pallas_sim.findings import Finding
from pallas_sim.traces import grid_facts
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.protocol import Backend, Outcome, Probe
from pytest_pallas.checks import declare_check, declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.checks.metamorphic import unchanged
from pytest_pallas.errors import MismatchError, NotApplicableError
from pytest_pallas.grid.kernel_calls import KernelCall, mutated_operands
from pytest_pallas.judge.judgement import bitwise
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.spec import KernelSpec

#: Why the check does not apply to a kernel.
NO_ALIAS = "no example aliases an input"

#: Each probe that changes when a block is read, and what it changes, in the words of a message. If
#: the output differs, the kernel reads a block after it overwrites it. A backend may lack some.
_PROBES: Sequence[tuple[Probe, str]] = (
    ("separate", "with and without shared memory"),
    ("late", "with and without prefetching of blocks"),
)

#: Memory spaces in which a kernel accesses the caller's array directly, at any time.
_IN_PLACE = frozenset({"any", "hbm", "host", "gmem"})


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why the check does not apply to the kernels of a call, or None."""
    del spec, backend
    return None if any(_in_place(kernel) for kernel in kernels) else NO_ALIAS


def requires_backend(backend: Backend) -> str | None:
    """Return the reason why the check does not apply to a backend, or None."""
    return f"{backend.name} executes nothing" if backend.kind == "compiling" else None


@declare_sanitizer(
    "donation",
    asks="is every aliased operand read before the output overwrites it?",
    requires_backend=requires_backend,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
)
def donation(context: CheckContext) -> CheckResult:
    """Check a kernel with ``input_output_aliases``, or one that changes refs in place.

    The check requires, and returns as comparisons:

    - The output and the operands stay the same if the caller uses the operands again in the same
      program.
    - A second call with the same arrays returns the same.

    On a simulated machine, it also requires that the output stays the same if it gets memory of its
    own that starts as a copy of the input, and on a simulated TPU without prefetching of blocks.
    Otherwise the kernel reads a block of the input after it overwrites it, and the prefetching of a
    chip decides whether it reads the old or the new contents. (The check ``immutability`` reports
    an input that the call deletes.)

    Raises:
      NotApplicableError: no kernel has aliases or changes a ref in place.
      MismatchError: the output depends on the memory or the prefetching; the message names the
        kernel and the refs.
      KernelError: the kernel raised.
    """
    args = context.arguments.args
    first = run(context, context.kernel, args)
    if context.settings.jit and not any(_in_place(kernel) for kernel in first.kernels):
        raise NotApplicableError(NO_ALIAS)
    comparisons = list[Comparison]()

    def used_again(*args: Any, **options: Any) -> Any:
        # So the program uses the operands after the call.
        return context.kernel(*args, **options), _arrays(args)

    reused = run(context, used_again, args, races=False)
    twice = run(
        context, functools.partial(_called_twice, context.kernel), args, races=False, jit=False
    )
    answer, operands = reused.values
    comparisons += _same(answer, first.values, "when the operands are used again")
    for number, (after, before) in enumerate(zip(operands, _arrays(args), strict=True)):
        where = f"input {number}, used again after the call"
        comparisons.append(bitwise(after, to_numpy(before), where=where))
    comparisons += _same(twice.values[1], twice.values[0], "in a second call with the same arrays")
    probes = getattr(context.backend, "probes", ())
    supported = [(probe, change) for probe, change in _PROBES if probe in probes]
    overwritten = [finding for finding in first.findings if finding.kind == "overwritten"]
    if "late" in probes:
        # This simulator reports every block that was read after it was overwritten. Without such a
        # finding, the probes cannot change the output, and need not run.
        pairs = [_accessed_pair(finding) for finding in overwritten]
    else:
        pairs = [pair for kernel in first.kernels for pair in _aliased_pairs(kernel)]
    if pairs and supported:
        failed: list[Comparison] = []
        for probe, change in supported:
            other = run(context, context.kernel, args, races=False, probe=probe)
            failed += [result for result in unchanged(first, other, change) if not result.passed]
        if failed:
            shared = "; ".join(dict.fromkeys(pairs))
            explanation = failed[0].explanation or Explanation("wrong")
            summary = (
                f"{shared}: the kernel reads a block of that input after it overwrites it. A chip "
                "prefetches blocks, so its schedule decides whether it reads the old or the new "
                "contents. Read each block in the program that overwrites it or in an earlier one, "
                "or drop the alias."
            )
            facts = [
                Fact("accesses", "\n".join(map(str, finding.accesses))) for finding in overwritten
            ]
            error = MismatchError.explained(explanation.under(summary).with_facts(*facts))
            error.findings = tuple(overwritten)
            raise error
    return CheckResult(comparisons=comparisons, outcome=first)


def _in_place(kernel: Any) -> bool:
    """Return whether an output shares the memory of an operand, or an operand is a ref."""
    eqn = kernel.eqn
    return bool(eqn.params.get("input_output_aliases")) or any(
        hasattr(var.aval, "inner_aval") for var in eqn.invars
    )


def _accessed_pair(finding: Finding) -> str:
    """Name the two refs of a finding ``overwritten``, for the message."""
    write, read = finding.accesses
    where = f" ({finding.line})" if finding.line else ""
    return f"{read.ref} and {write.ref} of {finding.kernel}{where} share memory"


def _aliased_pairs(kernel: Any) -> list[str]:
    """Name each aliased operand that a kernel reads by blocks, with its output."""
    if kernel.eqn.primitive.name != "pallas_call":
        return []
    facts = grid_facts(kernel.eqn)
    where = f" ({kernel.source})" if kernel.source else ""
    return [
        f"operand {len(facts.scalars) + number} and output {output} of {kernel.name}{where} share "
        "memory"
        for number, output in facts.aliases
        if number >= 0 and facts.inputs[number].space not in _IN_PLACE
    ]


def _called_twice(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the outputs of two calls; of one, twice, if it deletes an operand."""
    answer = kernel(*args, **options)
    if any(isinstance(operand, jax.Array) and operand.is_deleted() for operand in _arrays(args)):
        return answer, answer
    return answer, kernel(*args, **options)


def _arrays(args: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(args) if hasattr(leaf, "dtype")]


def _same(actual: Any, expected: Any, change: str) -> list[Comparison]:
    return list(unchanged(Outcome(values=actual), Outcome(values=expected), change))


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
        # Of a window of emit_pipeline, which is no operand.
        if finding.kind == "input-write" and not finding.dropped:
            error = MismatchError(str(finding))
            error.findings = (finding,)
            raise error
    outcome = run(context, context.kernel, context.arguments.args, jit=False)
    before = [to_numpy(leaf) for leaf in _arrays(context.arguments.args)]
    comparisons: list[Comparison] = []
    for position, (old, new) in enumerate(zip(before, outcome.inputs or (), strict=True)):
        if new is None:
            raise MismatchError(
                f"input {position} was deleted: the function donates its buffer (donate_argnums), "
                "so the caller cannot use it again."
            )
        comparisons.append(bitwise(new, old, where=f"input {position} after the call"))
    return CheckResult(comparisons=comparisons)
