"""Errors of kernels and of the simulator: each message has problem, location and remedy.

The messages are plain text. An ``Explanation`` is one as data, for those who print it otherwise;
the machine's own errors have ``findings`` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, NoReturn, Self

from pallas_sim.findings import Finding, Text, text_of

#: Entry points of functions that draw them: the distribution that has one is a layer above.
_DRAWN_BY = "pallas_sim.html"


class Inline:
    """An object that Jupyter shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the object as HTML; None without ``pytest-pallas[report]``, for plain text."""
        for function in entry_points(group=_DRAWN_BY):
            return function.load()(self)
        return None


# The message of a failure, as data, from which the text and the HTML page are made.


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
        """Return the same explanation below another summary."""
        return Explanation(summary, (self.summary, *self.details), self.facts)

    def with_facts(self, *facts: Fact) -> Explanation:
        """Return the same explanation with more facts."""
        return replace(self, facts=(*self.facts, *facts))

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON values."""
        return {
            "summary": self.summary,
            "details": list(self.details),
            "facts": [{"name": fact.name, "text": fact.text} for fact in self.facts],
        }


def explanation_of(text: str) -> Explanation:
    """Return the explanation of a text, whose first line is the summary."""
    summary, *details = text.splitlines() or [""]
    return Explanation(summary, tuple(details))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, for a list of errors."""
    return str(error).partition("\n")[0]


def one_line(error: BaseException) -> str:
    """Return the message of another package's error on one line, or the type if there is none."""
    return " ".join(str(error).split()) or type(error).__name__


class PallasError(Exception, Inline):
    """Base of all errors of this package, and of packages that test kernels with it."""

    #: Findings of monitors about the kernel, as data. That is all that the machine itself says.
    findings: tuple[Finding, ...] = ()

    #: The message as data, if it is more than a sentence; whoever reports the error sets it.
    explanation: Explanation | None = None

    #: Whether a time limit ended the run, so that running it again takes as long.
    timed_out: bool = False

    def __init_subclass__(cls) -> None:
        """Show subclasses under their public import name."""
        cls.__module__ = cls.__module__.partition(".")[0]

    @classmethod
    def of(cls, *findings: Finding) -> Self:
        """Return the error for these findings, with their text as its message."""
        error = cls(text_of(findings))
        error.findings = findings
        return error

    @classmethod
    def explained(cls, explanation: Explanation, headline: str = "") -> Self:
        """Return the error with this explanation, below a headline if there is one.

        Args:
          explanation: what is wrong.
          headline: kernel, check and backend.
        """
        error = cls(f"{headline}: {explanation}" if headline else str(explanation))
        error.explanation = explanation
        return error

    def with_message(self, message: str) -> Self:
        """Return the same error with another message, and with all its attributes."""
        error = type(self)(message)
        vars(error).update(vars(self))
        error.explanation = None  # it belongs to the other message
        error.__cause__ = self.__cause__
        return error


class OptionError(PallasError):
    """A command-line option, ini value, mark or fixture argument has an invalid value."""


class DeviceError(PallasError):
    """A mesh or a number of devices is not possible."""


class KernelError(PallasError):
    """The kernel raised instead of returning."""


class SimulationError(KernelError):
    """The simulator cannot continue with a kernel; the message ends with the kernel's line."""

    #: ``file:line`` of the equation, once it is known.
    line: str = ""

    def at(self, line: str, context: str) -> None:
        """Add the location to the message."""
        self.line = line
        where = " ".join(
            word for word in (context and f"in {context}", line and f"at {line}") if word
        )
        if where:
            self.args = (f"{self.args[0]}, {where}",)


def refuse(message: str, line: str) -> NoReturn:
    """Reject a kernel.

    Raises:
      SimulationError: with the message and the line.
    """
    refusal = SimulationError(message)
    refusal.at(line, "")
    raise refusal


class SimulationLimitError(SimulationError):
    """A simulated call takes more steps, memory or time than the limits of the run allow."""


class MissingRuleError(SimulationError):
    """The simulator has no rule for a primitive with effects."""


class BoundsError(KernelError):
    """The kernel loads or stores elements beyond the edges of a ref."""

    @property
    def finding(self) -> Finding | None:
        """The simulator's finding, or None."""
        return self.findings[0] if self.findings else None

    @finding.setter
    def finding(self, finding: Finding | None) -> None:
        self.findings = () if finding is None else (finding,)


class DeadlockError(KernelError):
    """A kernel waited for a signal that did not come."""
