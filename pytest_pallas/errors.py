"""Every exception of the package. Each message says what, where and what to do."""

from __future__ import annotations

from typing import Any, Self

from pytest_pallas.explanations import Explanation
from pytest_pallas.findings import Finding, text_of


class PallasTestError(Exception):
    """Base of every error that this package raises on purpose."""

    #: What is wrong with the kernel, as data, where a watcher or a monitor found it.
    findings: tuple[Finding, ...] = ()

    #: What the message says, as data, where it is more than a sentence.
    explanation: Explanation | None = None

    #: What is wrong, where the message goes on to say what was asked and drawn; else "".
    plain: str = ""

    #: What the kernel or the reference raised, where that is behind it; shown with ``-vv``.
    kernel_error: BaseException | None = None

    #: The check and the call that failed (``checks.verdict.Failure``), where one did.
    failure: Any = None

    #: What was seen of the kernel's grids (``analysis.grid.Analysis``), where those are wrong.
    analysis: Any = None

    #: What became of the script that reproduces it (``replay.saved.Saved``), once it is written.
    script: Any = None

    #: The order in which the failing run was done (``backends.schedules.Schedule``), if not plain.
    schedule: Any = None

    def __init_subclass__(cls) -> None:
        """Show subclasses under the name by which they are imported, in short summaries too."""
        cls.__module__ = "pytest_pallas"

    @classmethod
    def of(cls, *findings: Finding) -> Self:
        """The error for these findings, which it says and carries."""
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
        """The same error, with all that it carries, under another message."""
        error = type(self)(message)
        vars(error).update(vars(self))
        error.explanation = None  # it was that of the other message
        error.__cause__ = self.__cause__
        return error


class SpecError(PallasTestError):
    """A ``KernelSpec`` or its strategy cannot be used as it is written."""


class DrawTooLargeError(SpecError):
    """What a strategy would draw does not fit within ``--pallas-max-bytes``."""


class NotApplicableError(SpecError):
    """A check was asked for that cannot be asked of this kernel, or on this backend."""


class OptionError(PallasTestError):
    """A command-line option, ini value, mark or fixture argument has an invalid value."""


class ShapeLanguageError(PallasTestError, ValueError):
    """A shape such as ``"m k, k n"`` could not be understood."""


class BackendUnavailableError(PallasTestError):
    """A backend was asked for that this machine cannot provide."""


class DeviceError(PallasTestError):
    """A mesh or a device count that cannot be had."""


class TooFewDevicesError(DeviceError):
    """A mesh that a machine with more devices could have: the test may be skipped here."""


class NoPallasCallError(PallasTestError):
    """What was meant to run a Pallas kernel on a backend contains none there."""


class KernelError(PallasTestError):
    """The kernel raised instead of returning."""


class ReferenceError(PallasTestError):
    """The reference raised, or returned something that no kernel can be judged by."""


class SimulationError(KernelError):
    """The simulator cannot go on with a kernel; the message ends with the kernel's line."""

    #: ``file:line`` of the equation, once it is known.
    line: str = ""

    def at(self, line: str, place: str) -> None:
        """Add where it happened to the message."""
        self.line = line
        where = " ".join(word for word in (place and f"in {place}", line and f"at {line}") if word)
        if where:
            self.args = (f"{self.args[0]}, {where}",)


class SimulationLimitError(SimulationError):
    """A simulated call takes more steps, memory or time than the limits of the run allow."""


class MissingRuleError(SimulationError):
    """A program has a primitive that the simulator does not know, and that has effects."""


class GridError(KernelError):
    """The blocks that the programs of a kernel read and write are wrong."""


class BoundsError(KernelError):
    """The kernel loads or stores elements beyond the edges of a ref."""

    @property
    def finding(self) -> Finding | None:
        """What the simulator reports of it, or None."""
        return self.findings[0] if self.findings else None

    @finding.setter
    def finding(self, finding: Finding | None) -> None:
        self.findings = () if finding is None else (finding,)


class RaceError(KernelError):
    """Two accesses of the kernel to one place are not ordered, and one of them writes."""


class DeadlockError(KernelError):
    """A kernel waited for something that did not come."""


class DmaError(KernelError):
    """A kernel left DMAs or semaphores behind, or reached a device that was not ready."""


class HangError(KernelError):
    """A step of an isolated test did not end, and took its process with it."""


class CrashError(KernelError):
    """The process of an isolated test died."""


class OutOfMemoryError(KernelError):
    """An isolated test took more memory than ``--pallas-worker-memory``."""


class LeakError(KernelError):
    """A check left state of the process behind that would have changed later checks."""


class IsolationError(PallasTestError):
    """A test could not be run in a process of its own."""


class MutantError(PallasTestError):
    """A mutant could not be made of a kernel; that says nothing of the kernel or its checks."""


class CompileError(KernelError):
    """The compiler of a chip refused the kernel."""


class CompilerFailedError(KernelError):
    """The compiler of a chip hung, crashed or took too much memory over the kernel."""


class CostError(PallasTestError, AssertionError):
    """The machine code of a kernel costs more than was recorded."""


class GoldenError(PallasTestError):
    """A golden is damaged, foreign, or in the way of another one."""


class MismatchError(PallasTestError, AssertionError):
    """The kernel's answer was judged wrong."""


#: What an expected failure may be: a wrong answer, or a kernel that raised, raced or hung. A typo,
#: a reference that raises or a missing kernel is a mistake in the test, and must not count as one.
EXPECTED = (AssertionError, KernelError)

#: What is raised in place of the answer of a test that took its process with it.
DIED = (HangError, CrashError, OutOfMemoryError)
