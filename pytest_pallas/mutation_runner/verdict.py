"""The verdict on one mutant, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: ``killed``: a check failed. ``survived``: none did. ``equivalent``: it is the same program, or
#: the spec marks it and no check failed. ``untried``: time was over, or it could not be made.
Status = Literal["killed", "survived", "equivalent", "untried"]


@dataclass(frozen=True, kw_only=True)
class MutantVerdict:
    """The verdict on a mutant.

    Attributes:
      key: identifies the mutant.
      operator, change, kernel, part: as in ``mutation.Mutant``.
      where: ``file:line`` of the mutated code.
      called_from: ``file:line`` of its callers, the innermost first, in short.
      source: the line of code.
      callers: the lines of code of its callers.
      status: see ``Status``.
      by: the check that killed it, or the test, spec or run.
      on: the backend of that check, with the sizes of its mesh.
      how: the kind of failure, such as ``"MismatchError"``.
      examples: number of examples that ran on it.
      seconds: the time of these examples.
      reason: why it is equivalent or did not run.
      marked: whether the spec marks it as equivalent.
    """

    key: str
    operator: str
    change: str
    kernel: str
    part: str
    where: str
    source: str
    status: Status
    called_from: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    by: str = ""
    on: str = ""
    how: str = ""
    examples: int = 0
    seconds: float = 0.0
    reason: str = ""
    marked: bool = False


def who(verdict: MutantVerdict) -> str:
    """The check that killed a mutant, and its backend; "" if it is not known."""
    return f"{verdict.by} on {verdict.on}" if verdict.on else verdict.by


def to_json(verdict: MutantVerdict) -> dict[str, Any]:
    """As plain JSON values."""
    return dataclasses.asdict(verdict)


def from_json(plain: Mapping[str, Any]) -> MutantVerdict:
    """The verdict from ``to_json``."""
    fields = dict(plain)
    for name in ("called_from", "callers"):
        fields[name] = tuple(plain.get(name, ()))
    return MutantVerdict(**fields)


def score(verdicts: list[MutantVerdict]) -> float | None:
    """The percentage of killed mutants among those that were killed or survived."""
    killed = sum(verdict.status == "killed" for verdict in verdicts)
    survived = sum(verdict.status == "survived" for verdict in verdicts)
    return 100.0 * killed / (killed + survived) if killed + survived else None
