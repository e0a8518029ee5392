"""Errors of kernels and of the simulator: each message has problem, location and remedy."""

from __future__ import annotations

from typing import Any, Self

from pytest_pallas.explanations import Explanation
from pytest_pallas.findings import Finding, text_of
from pytest_pallas.inline import Inline


class PallasError(Exception, Inline):
    """Base of all errors that this package raises."""

    #: Findings of monitors about the kernel, as data.
    findings: tuple[Finding, ...] = ()

    #: The message as data, if it is more than a sentence.
    explanation: Explanation | None = None

    #: The error without headline and drawn example, if the message has them; else "".
    plain: str = ""

    #: The underlying error of the kernel or the reference; shown with ``-vv``.
    kernel_error: BaseException | None = None

    #: The check and the call that failed (``checks.verdict.Failure``), or None.
    failure: Any = None

    #: Failures of the same check with other causes (``sampling.causes``).
    others: tuple[PallasError, ...] = ()

    #: The analysis of the kernel's grids (``analysis.grid.Analysis``), for wrong grids.
    analysis: Any = None

    #: The script that reproduces it (``replay.saved.Saved``), once it is written.
    script: Any = None

    #: Whether all processes of the program know of it: each raises its own, or a ``PeerError``.
    shared: bool = False

    #: Whether a time limit ended the run, so that running it again takes as long.
    timed_out: bool = False

    #: The schedule of the failing run (``backends.variations.Schedule``), unless the default.
    schedule: Any = None

    def __init_subclass__(cls) -> None:
        """Show subclasses under their public import name."""
        cls.__module__ = "pytest_pallas"

    @classmethod
    def of(cls, *findings: Finding) -> Self:
        """The error for these findings, with their text as its message."""
        error = cls(text_of(findings))
        error.findings = findings
        return error

    @classmethod
    def explained(cls, explanation: Explanation, headline: str = "") -> Self:
        """The error with this explanation, below a headline that ends with a colon if there is one.

        Args:
          explanation: what is wrong.
          headline: kernel, check and backend.
        """
        error = cls(f"{headline}: {explanation}" if headline else str(explanation))
        error.explanation = explanation
        return error

    def with_message(self, message: str) -> Self:
        """The same error with another message, and with all its attributes."""
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

    def at(self, line: str, place: str) -> None:
        """Add the location to the message."""
        self.line = line
        where = " ".join(word for word in (place and f"in {place}", line and f"at {line}") if word)
        if where:
            self.args = (f"{self.args[0]}, {where}",)


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
