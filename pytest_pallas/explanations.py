"""What the message of a failure says, as data. The text is made of it, and so is the HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something that is known of a failure, under a short name.

    Attributes:
      name: such as ``"worst"`` or ``"inputs"``.
      text: one line or several.
    """

    name: str
    text: str

    def __str__(self) -> str:
        """As messages have it, with further lines below the first."""
        first, *rest = self.text.split("\n")
        return "\n".join([f"  {self.name:<9} {first}", *(f"{'':12}{line}" for line in rest)])


@dataclass(frozen=True)
class Explanation:
    """What is wrong.

    Attributes:
      summary: in one line, without kernel, check and backend.
      details: further lines, as they are printed.
      facts: what is known besides, in order; a name may come more than once.
    """

    summary: str
    details: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        """The text of it all."""
        return "\n".join([self.summary, *self.details, *map(str, self.facts)])

    def under(self, summary: str) -> Explanation:
        """The same below another summary."""
        return Explanation(summary, (self.summary, *self.details), self.facts)

    def with_facts(self, *facts: Fact) -> Explanation:
        """The same with more facts."""
        return replace(self, facts=(*self.facts, *facts))


def explanation_of(text: str) -> Explanation:
    """That of a text of which nothing else is known: its first line sums it up."""
    summary, *details = text.splitlines() or [""]
    return Explanation(summary, tuple(details))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for a list of errors."""
    return str(error).partition("\n")[0]


def to_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON has it."""
    return {
        "summary": explanation.summary,
        "details": list(explanation.details),
        "facts": [{"name": fact.name, "text": fact.text} for fact in explanation.facts],
    }


def from_json(data: Mapping[str, Any]) -> Explanation:
    """The explanation that ``to_json`` was given."""
    facts = tuple(Fact(fact["name"], fact["text"]) for fact in data["facts"])
    return Explanation(data["summary"], tuple(data["details"]), facts)
