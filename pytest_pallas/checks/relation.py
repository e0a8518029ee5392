"""``relation``: a relation of one's own between two answers of the kernel holds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.checks.metamorphic import (
    Answer,
    answer,
    ask_each,
    claim,
    close,
    equal,
    holding,
    requires_relation,
)
from pytest_pallas.errors import SpecError
from pytest_pallas.relations import Relation
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


def subjects(spec: KernelSpec, arguments: Arguments) -> list[int]:
    """Which of the relations of a spec can be asked about a drawn call."""
    return holding(spec.relations, Relation, arguments)


@declare_check(
    "relation",
    asks="do the spec's own relations between two answers hold?",
    requires_spec=requires_relation(Relation),
    example_fraction=0.25,
    subjects=subjects,
)
def relation(context: CheckContext) -> CheckResult:
    """Ask about each ``Relation`` of the spec: is ``f(change(x))`` what ``expect(f(x))`` says?

    Raises:
      NotApplicableError: the spec has none.
      SpecError: ``change`` or ``expect`` raised, or ``change`` made no call.
    """
    return ask_each(context, Relation, _one)


def _one(
    context: CheckContext, asked: Relation, drawn: Answer, rng: np.random.Generator
) -> Iterator[CheckResult]:
    changed = _called(asked, "change", drawn.arguments, rng)
    if not isinstance(changed, Arguments):
        raise SpecError(
            f"relation {asked.name!r}: change returned {type(changed).__name__}, not "
            "strategies.Arguments; dataclasses.replace(arguments, args=...) makes some"
        )
    other = answer(context, changed)
    expect_of = functools.partial(_called, asked, "expect")
    claimed = claim(drawn, lambda outputs: expect_of(outputs, changed))
    compare = equal if asked.exact else close
    yield CheckResult(
        comparisons=compare(context, other, claimed),
        seconds=other.outcome.seconds,
        subject=f"{asked.name}: f(change(x)) against expect(f(x)) in the oracle's place",
    )


def _called(asked: Relation, name: str, *args: Any) -> Any:
    try:
        return getattr(asked, name)(*args)
    except Exception as error:
        raise SpecError(
            f"relation {asked.name!r}: {name} raised {type(error).__name__}: {error}"
        ) from error
