"""All exceptions of the package. Each message has the problem, its location and the remedy."""

from __future__ import annotations

from typing import Any, Self

from pytest_pallas.explanations import Explanation
from pytest_pallas.findings import Finding, text_of
from pytest_pallas.inline import Inline


class PallasTestError(Exception, Inline):
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
    others: tuple[PallasTestError, ...] = ()

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


class SpecError(PallasTestError):
    """A ``KernelSpec`` or its strategy is wrong."""


class DrawTooLargeError(SpecError):
    """A draw does not fit within ``--pallas-max-bytes``, or the check of a call into memory."""


class NotApplicableError(SpecError):
    """A check does not apply to this kernel, or on this backend."""


class UnsupportedKernelError(NotApplicableError):
    """A backend cannot run kernels of this kind, or not on such arguments."""


class OptionError(PallasTestError):
    """A command-line option, ini value, mark or fixture argument has an invalid value."""


class ShapeLanguageError(PallasTestError, ValueError):
    """A shape such as ``"m k, k n"`` cannot be parsed."""


class BackendUnavailableError(PallasTestError):
    """A selected backend is not available on this machine."""


class DeviceError(PallasTestError):
    """A mesh or a number of devices is not possible."""


class TooFewDevicesError(DeviceError):
    """A mesh needs more devices than are available; the test may be skipped."""


class NoPallasCallError(PallasTestError):
    """A function has no Pallas kernel on a backend, although it must have one."""


class KernelError(PallasTestError):
    """The kernel raised instead of returning."""


class ReferenceError(PallasTestError):
    """The reference raised, or returned values that kernels cannot be compared with."""


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


class GridError(KernelError):
    """The blocks that the programs of a kernel read and write are wrong."""


class BoundsError(KernelError):
    """The kernel loads or stores elements beyond the edges of a ref."""

    @property
    def finding(self) -> Finding | None:
        """The simulator's finding, or None."""
        return self.findings[0] if self.findings else None

    @finding.setter
    def finding(self, finding: Finding | None) -> None:
        self.findings = () if finding is None else (finding,)


class CapacityError(KernelError):
    """A kernel needs more memory than the chip has: a launch of it fails."""


class RaceError(KernelError):
    """Two unordered accesses of the kernel to the same memory, at least one of them a write."""


class DeadlockError(KernelError):
    """A kernel waited for a signal that did not come."""


class DmaError(KernelError):
    """A kernel left DMAs or semaphores behind, or reached a device that was not ready."""


class HangError(KernelError):
    """A step of a test did not end: of an isolated one, its process was killed."""

    timed_out = True


class CrashError(KernelError):
    """The process of an isolated test died."""


class OutOfMemoryError(KernelError):
    """An isolated test took more memory than ``--pallas-worker-memory``."""


class LeakError(KernelError):
    """A check changed state of the process that would affect later checks."""


class IsolationError(PallasTestError):
    """A test could not run in its own process."""


class FleetError(PallasTestError):
    """The workers of a fleet that ran a test were lost."""


class MutantError(PallasTestError):
    """A mutant could not be made; this is no error of the kernel or its checks."""


class CompileError(KernelError):
    """The compiler of a chip rejected the kernel."""


class CompilerFailedError(KernelError):
    """The compiler of a chip hung, crashed or used too much memory for the kernel."""


class CostError(PallasTestError, AssertionError):
    """The machine code of a kernel costs more than recorded."""


class GoldenError(PallasTestError):
    """A golden is damaged, has an unknown format, or would be replaced."""


class MismatchError(PallasTestError, AssertionError):
    """The kernel's output is wrong."""


class GangError(PallasTestError):
    """The processes of one program do different things, or one of them did not come in time."""


class PeerError(PallasTestError, AssertionError):
    """Another process of the program failed, so that this one cannot go on."""

    #: The numbers of the processes that failed.
    processes: tuple[int, ...] = ()

    #: Whether the first of them failed because its kernel raised.
    kernel_raised: bool = False

    #: Whether they have ended what this process still does.
    gone: bool = False

    #: What the first of them did when it failed: a step of ``devices.processes.agree``.
    step: str = ""


#: Errors that an expected failure may have: a wrong output, or a kernel that raised, raced or hung.
#: A typo, a reference that raises or a missing kernel is an error of the test, and does not count.
EXPECTED = (AssertionError, KernelError)

#: Errors that say that the kernel of a check raised, so that other checks need not run.
RAISED_BY_KERNEL = (KernelError, NoPallasCallError, ReferenceError)

#: Those among them of a kernel that runs nevertheless.
KERNEL_RUNS = (GridError, LeakError)

#: Errors of a test whose process died.
DIED = (HangError, CrashError, OutOfMemoryError)
