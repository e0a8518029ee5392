"""What errors of checks say, as counterexamples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pallas_sim.errors import (
    BoundsError,
    DeadlockError,
    KernelError,
    PallasError,
    SimulationLimitError,
    first_line,
)
from pytest_pallas.candidates.verdicts import Counterexample
from pytest_pallas.errors import (
    CapacityError,
    CompileError,
    DmaError,
    GridError,
    HangError,
    MismatchError,
    RaceError,
    facts_of,
)

#: What errors are called, the most specific first.
_NAMES: tuple[tuple[type[PallasError], str], ...] = (
    (RaceError, "race"),
    (DmaError, "copy"),
    (DeadlockError, "deadlock"),
    (BoundsError, "out of bounds"),
    (GridError, "grid"),
    (CapacityError, "too much memory"),
    (CompileError, "does not compile"),
    (HangError, "hangs"),
    (SimulationLimitError, "too many steps"),
    (MismatchError, "wrong answer"),
    (KernelError, "raises"),
)

#: Kinds of comparisons that are no wrong numbers.
_KINDS = {"dtype": "wrong dtype", "shape": "wrong shape", "tree": "wrong structure"}


def of_error(
    example: Counterexample, error: PallasError, check: str, line: Callable[[], str]
) -> Counterexample:
    """Return a call as the counterexample that an error describes.

    Args:
      example: the call.
      error: what a check raised.
      check: name of the check.
      line: returns the line of the kernel's call.
    """
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "raises")
    failure = facts_of(error).failure
    failed = None if failure is None or failure.result is None else failure.result.failed
    where = next((finding.line for finding in error.findings if finding.line), "") or line()
    example = replace(
        example,
        name=name,
        sentence=first_line(error) if error.explanation is None else error.explanation.summary,
        details=() if error.explanation is None else error.explanation.details,
        line=where,
        block=_fact(error, "block"),
        cause=_fact(error, "cause"),
    )
    if check == "immutability":
        example = replace(example, name="changes its inputs")
    elif check == "padding" and name == "wrong answer":
        return replace(example, name="reads padding")
    if failed is None:
        return example
    return replace(
        example,
        name=_KINDS.get(failed.kind, name) if name == "wrong answer" else example.name,
        sentence=failed.explanation.summary if failed.explanation else example.sentence,
        output=failed.where,
        index=failed.worst_index or (),
        kernel=failed.actual_value,
        expected=failed.expected_value,
        error=failed.error,
        allowed=failed.allowed,
        wrong=failed.wrong,
        patterns=failed.patterns,
    )


def _fact(error: PallasError, name: str) -> str:
    """Return a fact of an error's explanation, such as its cause; "" without one."""
    facts = () if error.explanation is None else error.explanation.facts
    return next((fact.text for fact in facts if fact.name == name), "")
