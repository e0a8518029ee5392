"""``oracle-strength``: the spec's own tolerance and data reject answers that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.checks.check import Check
from pytest_pallas.checks.corruptions import corruptions
from pytest_pallas.checks.trial import Trial, TrialResult, exactly, expect
from pytest_pallas.numerics import Tolerance, bitwise, compare_trees, epsilon, is_exact

#: A change of fewer ulps of the output's scale is what rounding might do: no corruption.
LEAST_CHANGE = 4.0


@dataclass(frozen=True)
class Attempt:
    """One wrong answer, and whether it was noticed.

    Attributes:
      kind: what was done to the right answer.
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
    """What one example says.

    Attributes:
      attempts: every wrong answer that could be made of the right one.
      tolerance: what they were judged by.
    """

    attempts: tuple[Attempt, ...]
    tolerance: Tolerance


def oracle_strength(trial: Trial) -> TrialResult:
    """Corrupt the right answer in several ways, and judge each as ``forward`` would.

    The answer is the baseline, so no kernel runs. Whether the spec is too weak is concluded over
    all examples: a single one may be all zeros.
    """
    expected, exact = expect(trial), exactly(trial)
    oracle = dict(expected.oracle)
    attempts: list[Attempt] = []
    for path, answer in expected.baseline:
        for kind, wrong in corruptions(answer, fraction=trial.tolerance.fraction):
            change = _change(wrong, answer, trial.tolerance)
            if not change:
                continue
            [judged] = compare_trees(
                [(path, wrong)],
                [(path, oracle[path])],
                [(path, answer)],
                tolerance=trial.tolerance,
                exact=exact,
                depth=expected.depth,
                sensitivity=expected.sensitivity,
            )
            attempts.append(Attempt(kind, path or "the output", not judged.passed, change))
    return TrialResult(comparisons=(), evidence=Evidence(tuple(attempts), trial.tolerance))


def conclude(evidence: Sequence[Evidence]) -> str | None:
    """What the spec would accept, from all examples; None if it rejects every kind of mistake."""
    tried: dict[tuple[str, str], list[Attempt]] = {}
    for example in evidence:
        for attempt in example.attempts:
            tried.setdefault((attempt.where, attempt.kind), []).append(attempt)
    if not tried:
        return (
            f"no wrong answer could be made of the right ones of {len(evidence)} examples: they "
            "are all zeros, or empty, so this spec accepts a kernel that does nothing. Draw "
            "inputs with an answer: other values=, larger dims, a mask that leaves something."
        )
    accepted = {
        key: attempts
        for key, attempts in tried.items()
        if not any(attempt.rejected for attempt in attempts)
    }
    if not accepted:
        return None
    lines = ["wrong answers pass: these corruptions of the right answer were always accepted"]
    for (where, kind), attempts in accepted.items():
        examples = f"all {len(attempts)} examples" if len(attempts) > 1 else "the one example"
        lines.append(
            f"  {where}, {kind}: accepted in {examples} where that changes anything; "
            f"an element changed by {attempts[0].change}"
        )
    tolerances = {example.tolerance: None for example in evidence}
    lines.append(f"  judged by {' and '.join(map(_words, tolerances))}")
    lines.append(f"  {_remedy(tuple(tolerances))}")
    return "\n".join(lines)


def _change(wrong: Any, answer: Any, tolerance: Tolerance) -> str:
    """The largest change of an element in words, or "" where it is none."""
    compared = bitwise(wrong, answer)
    if compared.wrong <= int(tolerance.fraction * answer.size):
        return ""
    if is_exact(answer.dtype):
        return f"{compared.error:g}" if compared.error else ""
    if compared.error <= LEAST_CHANGE:
        return ""
    return f"{compared.error * epsilon(answer.dtype):.1%} of the output's scale"


def _words(tolerance: Tolerance) -> str:
    """The fields that are not the default's."""
    default = Tolerance()
    names = ("factor", "floor", "rtol", "atol", "ulp", "fraction")
    given = {name: getattr(tolerance, name) for name in names}
    said = [f"{n}={v:g}" for n, v in given.items() if v is not None and v != getattr(default, n)]
    return f"Tolerance({', '.join(said)})" if said else "the default tolerance"


def _remedy(tolerances: Sequence[Tolerance]) -> str:
    if all(tolerance == Tolerance() for tolerance in tolerances):
        return (
            "The tolerance is the default, so the data hides the mistake: draw other values= "
            "(rows that differ, nothing that cancels), and dims that are larger and unequal."
        )
    return (
        "Leave out the tolerance (the default asks for an error like the baseline's), or tighten "
        "it until these are rejected; or draw values= of which the answer is larger."
    )


CHECK = Check(
    name="oracle-strength",
    asks="do the spec's tolerance and data reject answers that are wrong?",
    run=oracle_strength,
    example_fraction=0.5,
    min_examples=4,
    conclude=conclude,
    executes=False,
    tries_mutants=False,
)
