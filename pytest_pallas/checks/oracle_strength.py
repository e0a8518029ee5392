"""``oracle-strength``: the spec's own tolerance and data reject wrong outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_sim.dtypes import epsilon, is_bool, is_exact, wide
from pytest_pallas.backends.tracing import traced_kernels
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, call, exactly, expect
from pytest_pallas.judge.judgement import Expected, bitwise, compare_trees
from pytest_pallas.judge.oracle import argument_name
from pytest_pallas.judge.tolerance import Tolerance

Array = np.ndarray[Any, Any]


def corruptions(answer: Array, *, fraction: float = 0.0) -> Iterator[tuple[str, Array]]:
    """Yield corruptions of a right output, each with a short description.

    Each is a mistake of real kernels: a missing scale, a wrong sign, an index off by one, a block
    that is not written, the wrong row, swapped axes. A corruption may happen to equal the output.

    Args:
      answer: any shape, and a bool, integer, float or complex dtype.
      fraction: the fraction of elements that may be wrong; the smallest corruption has one more.

    Yields:
      Arrays of the shape and dtype of ``answer``.
    """
    if not answer.size:
        return
    if not is_exact(answer.dtype):
        with np.errstate(all="ignore"):
            yield "scaled by 1.1", (wide(answer) * 1.1).astype(answer.dtype)
    yield _few_wrong(answer, int(fraction * answer.size) + 1)
    for axis in range(answer.ndim):
        if answer.shape[axis] > 1:
            yield f"rolled by one along axis {axis}", np.roll(answer, 1, axis)
            yield f"zeros at the last index of axis {axis}", _without_last(answer, axis)
    if answer.ndim:
        yield "one row replaced by its neighbour", _row_off(answer)
    if answer.ndim > 1 and answer.shape[-1] == answer.shape[-2] > 1:
        yield "last two axes transposed", np.ascontiguousarray(answer.swapaxes(-1, -2))


def _few_wrong(answer: Array, count: int) -> tuple[str, Array]:
    """Return the output with its ``count`` largest elements negated, off by one, or flipped."""
    changed = answer.copy()
    flat = changed.reshape(-1)
    values = wide(flat)
    size = f"the {count} largest elements" if count > 1 else "the largest element"
    if is_bool(answer.dtype):
        chosen = slice(0, count)
        flat[chosen] = ~flat[chosen]
        return f"{count} {'bools' if count > 1 else 'bool'} flipped", changed
    if is_exact(answer.dtype):
        # Towards zero, so that no integer wraps around; a zero becomes one.
        chosen = np.argsort(-np.abs(values.astype(np.float64)), kind="stable")[:count]
        moved = [int(v) + (1 if v <= 0 else -1) for v in values[chosen].tolist()]
        flat[chosen] = np.array(moved).astype(answer.dtype)
        return f"{size} off by one", changed
    magnitude = np.where(np.isfinite(values), np.abs(values), -1.0)
    chosen = np.argsort(-magnitude, kind="stable")[:count]
    flat[chosen] = -flat[chosen]
    return f"{size} with the other sign", changed


def _without_last(answer: Array, axis: int) -> Array:
    changed = answer.copy()
    index = [slice(None)] * answer.ndim
    index[axis] = slice(-1, None)
    changed[tuple(index)] = np.zeros((), answer.dtype)
    return changed


def _row_off(answer: Array) -> Array:
    """Copy the row before the middle one over it, in the first matrix or in a vector."""
    changed = answer.copy()
    matrix = changed
    while matrix.ndim > 2:
        matrix = matrix[0]
    if matrix.ndim == 2 and matrix.shape[0] == 1:
        matrix = matrix[0]
    middle = matrix.shape[0] // 2
    if middle:
        matrix[middle] = matrix[middle - 1].copy()
    return changed


#: A change of fewer ulps of the output's scale could be rounding: it is no corruption.
LEAST_CHANGE = 4.0

#: The number of examples that show what a single one need not.
MIN_EXAMPLES = 4


@dataclass(frozen=True)
class Attempt:
    """One wrong output, and whether the tolerance rejects it.

    Attributes:
      kind: the corruption.
      where: which output.
      rejected: whether ``forward`` would have failed.
      change: the largest change of an element, in words.
    """

    kind: str
    where: str
    rejected: bool
    change: str


@dataclass(frozen=True)
class Evidence:
    """The evidence of one example.

    Attributes:
      attempts: all corruptions of the right output.
      tolerance: the tolerance that was applied.
      used: the arguments that an output depends on.
      unused: those that it does not depend on.
    """

    attempts: tuple[Attempt, ...]
    tolerance: Tolerance
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def conclude(evidence: Sequence[Evidence]) -> str | None:
    """Describe the corruptions that the spec always accepts; None if it rejects every kind."""
    tried: dict[tuple[str, str], list[Attempt]] = {}
    for example in evidence:
        for attempt in example.attempts:
            tried.setdefault((attempt.where, attempt.kind), []).append(attempt)
    if not tried:
        return (
            f"the outputs of all {len(evidence)} examples are zeros or empty, so this spec accepts "
            "a kernel that does nothing. Draw inputs with nonzero outputs: other values=, larger "
            "dims, a mask that keeps some elements."
        )
    accepted = {
        key: attempts
        for key, attempts in tried.items()
        if not any(attempt.rejected for attempt in attempts)
    }
    unused = _unused(evidence)
    if unused:
        count = f"all {len(evidence)} examples" if len(evidence) > 1 else "the one example"
        return (
            f"the output does not depend on {' and '.join(unused)} in {count}, so this spec "
            "accepts a kernel that never reads it. Draw inputs with an effect (weights that are "
            "not 0, other values=, a mask that keeps some elements), let the reference use it, or "
            "leave it out."
        )
    if not accepted:
        return None
    lines = ["wrong outputs pass: the spec accepts these corruptions of the right output"]
    for (where, kind), attempts in accepted.items():
        examples = f"all {len(attempts)} examples" if len(attempts) > 1 else "the one example"
        lines.append(
            f"  {where}, {kind}: accepted in {examples} that it changes; it changes an element by "
            f"{attempts[0].change}"
        )
    tolerances = {example.tolerance: None for example in evidence}
    lines.append(f"  tolerance: {' and '.join(map(_tolerance_text, tolerances))}")
    lines.append(f"  {_remedy(tuple(tolerances))}")
    return "\n".join(lines)


def _unused(evidence: Sequence[Evidence]) -> list[str]:
    """Return the arguments that no output of any example depends on.

    A spec draws several calls, in one of which an argument may be without effect: there it takes
    as many as the check draws at least.
    """
    used = {name for example in evidence for name in example.used}
    counts = Counter(name for example in evidence for name in example.unused)
    least = min(MIN_EXAMPLES, len(evidence))
    return [name for name, count in counts.items() if name not in used and count >= least]


@declare_check(
    "oracle-strength",
    asks="do the spec's tolerance and data reject wrong outputs?",
    example_fraction=0.5,
    min_examples=MIN_EXAMPLES,
    conclude=conclude,
    evidence=Evidence,
    executes=False,
    tries_mutants=False,
)
def oracle_strength(context: CheckContext) -> CheckResult:
    """Corrupt the right output in several ways, and compare each as ``forward`` does.

    The right output is the baseline, so no kernel runs. The conclusion needs all examples, because
    a single one may be all zeros.
    """
    expected, exact = expect(context), exactly(context)
    oracle = dict(expected.oracle)
    attempts: list[Attempt] = []
    for path, answer in expected.baseline:
        for kind, wrong in corruptions(answer, fraction=context.tolerance.fraction):
            change = _change(wrong, answer, context.tolerance)
            if not change:
                continue
            [judged] = compare_trees(
                [(path, wrong)],
                Expected(
                    [(path, oracle[path])], [(path, answer)], expected.depth, expected.sensitivity
                ),
                tolerance=context.tolerance,
                exact=exact,
                explained=False,
            )
            attempts.append(Attempt(kind, path or "the output", not judged.passed, change))
    effects = expected.effects()
    unused = [name for name, has_effect in effects.items() if not has_effect]
    spared = _written_arguments(context) if unused else ()
    evidence = Evidence(
        tuple(attempts),
        context.tolerance,
        used=tuple(name for name, has_effect in effects.items() if has_effect),
        unused=tuple(name for name in unused if name not in spared),
    )
    return CheckResult(comparisons=(), evidence=evidence)


def _written_arguments(context: CheckContext) -> Collection[str]:
    """Return the arguments that need no effect: a kernel writes to their memory, or ignores them.

    These are those with the shape and dtype of an operand that shares memory with an output, and
    those whose elements the spec's ``ignored`` names, all of them.
    """
    args = context.arguments.args
    kernels = traced_kernels(call(context, context.kernel, args), context.backend)
    written = {
        (tuple(operand.aval.shape), str(operand.aval.dtype))
        for kernel in kernels
        for operand in _shared_operands(kernel.eqn)
    }
    leaves = jax.tree_util.tree_leaves_with_path(args)
    spared = {
        argument_name(path)
        for path, leaf in leaves
        if hasattr(leaf, "dtype") and (np.shape(leaf), str(leaf.dtype)) in written
    }
    if context.ignored is not None:
        masks = context.ignored(*args, **context.arguments.options)
        for path, mask in jax.tree_util.tree_leaves_with_path(tuple(masks)):
            if np.asarray(mask).all():
                spared.add(argument_name(path))
    return spared


def _shared_operands(eqn: Any) -> Iterator[Any]:
    """Yield the operands of a kernel whose memory it writes: aliased ones and refs."""
    for source, _ in eqn.params.get("input_output_aliases") or ():
        yield eqn.invars[int(source)]
    yield from (atom for atom in eqn.invars if hasattr(atom.aval, "inner_aval"))


def _change(wrong: Any, answer: Any, tolerance: Tolerance) -> str:
    """Return the largest change of an element in words, or "" where it is none."""
    compared = bitwise(wrong, answer, explained=False)
    if compared.wrong <= int(tolerance.fraction * answer.size):
        return ""
    if is_exact(answer.dtype):
        return f"{compared.error:g}" if compared.error else ""
    if compared.error <= LEAST_CHANGE:
        return ""
    return f"{compared.error * epsilon(answer.dtype):.1%} of the output's scale"


def _tolerance_text(tolerance: Tolerance) -> str:
    """Return the fields that differ from the default."""
    default = vars(Tolerance())
    fields = [f"{n}={v:g}" for n, v in vars(tolerance).items() if v not in (None, default[n])]
    return f"Tolerance({', '.join(fields)})" if fields else "the default tolerance"


def _remedy(tolerances: Sequence[Tolerance]) -> str:
    if all(tolerance == Tolerance() for tolerance in tolerances):
        return (
            "The tolerance is the default, so the data hides the mistake: draw other values= (rows "
            "that differ, sums that do not cancel), and larger, unequal dims."
        )
    return (
        "Leave out the tolerance (the default allows an error like the baseline's), or tighten it "
        "until the spec rejects these; or draw values= that give larger outputs."
    )
