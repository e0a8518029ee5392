"""The message of a failure, as data, from which the text and the HTML page are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_pallas.findings import Text


@dataclass(frozen=True)
class Fact:
    """A fact about a failure, with a short name.

    Attributes:
      name: such as ``"worst"`` or ``"inputs"``.
      text: one line or several.
    """

    name: str
    text: Text

    def __str__(self) -> str:
        """The lines of a message, aligned below the first."""
        first, *rest = self.text.split("\n")
        return "\n".join([f"  {self.name:<9} {first}", *(f"{'':12}{line}" for line in rest)])


@dataclass(frozen=True)
class Explanation:
    """The explanation of a failure.

    Attributes:
      summary: the error in one line, without kernel, check and backend.
      details: further lines, as printed.
      facts: facts in order; a name may repeat.
    """

    summary: Text
    details: tuple[Text, ...] = ()
    facts: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        """The full text."""
        return "\n".join([self.summary, *self.details, *map(str, self.facts)])

    def under(self, summary: str) -> Explanation:
        """The same explanation below another summary."""
        return Explanation(summary, (self.summary, *self.details), self.facts)

    def with_facts(self, *facts: Fact) -> Explanation:
        """The same explanation with more facts."""
        return replace(self, facts=(*self.facts, *facts))

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain JSON values."""
        return {
            "summary": self.summary,
            "details": list(self.details),
            "facts": [{"name": fact.name, "text": fact.text} for fact in self.facts],
        }


def explanation_of(text: str) -> Explanation:
    """The explanation of a text, whose first line is the summary."""
    summary, *details = text.splitlines() or [""]
    return Explanation(summary, tuple(details))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for a list of errors."""
    return str(error).partition("\n")[0]


def one_line(error: BaseException) -> str:
    """The message of another package's error on one line, or the type if there is none."""
    return " ".join(str(error).split()) or type(error).__name__
