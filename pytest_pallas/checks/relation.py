"""``relation``: a user-defined relation between two outputs of the kernel holds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.checks.metamorphic import (
    CallOutput,
    answer,
    check_each,
    claim,
    close,
    equal,
    requires_relation,
    subjects_of,
)
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import SpecError
from pytest_pallas.spec import Relation


@declare_check(
    "relation",
    asks="do the spec's own relations between two outputs hold?",
    requires_spec=requires_relation(Relation),
    example_fraction=0.25,
    subjects=subjects_of(Relation),
)
def relation(context: CheckContext) -> CheckResult:
    """Check each ``Relation`` of the spec: ``f(change(x))`` must agree with ``expect(f(x))``.

    Raises:
      NotApplicableError: the spec has none.
      SpecError: ``change`` or ``expect`` raised, or ``change`` did not return a call.
    """
    return check_each(context, Relation, _one)


def _one(
    context: CheckContext, declared: Relation, drawn: CallOutput, rng: np.random.Generator
) -> Iterator[CheckResult]:
    changed = _called(declared, "change", drawn.arguments, rng)
    if not isinstance(changed, Arguments):
        raise SpecError(
            f"relation {declared.name!r}: change returned {type(changed).__name__}, not "
            "strategies.Arguments; dataclasses.replace(arguments, args=...) returns them"
        )
    other = answer(context, changed)
    expect_of = functools.partial(_called, declared, "expect")
    claimed = claim(drawn, lambda outputs: expect_of(outputs, changed))
    compare = equal if declared.exact else close
    yield CheckResult(
        comparisons=compare(context, other, claimed),
        subject=f"{declared.name}: f(change(x)) compared with expect(f(x)) as the oracle",
    )


def _called(declared: Relation, name: str, *args: Any) -> Any:
    try:
        return getattr(declared, name)(*args)
    except Exception as error:
        raise SpecError(
            f"relation {declared.name!r}: {name} raised {type(error).__name__}: {error}"
        ) from error
