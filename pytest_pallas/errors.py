"""All exceptions of the package. Each message has the problem, its location and the remedy."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pallas_sim
from pallas_sim.errors import DeviceError, KernelError, PallasError


@dataclass(eq=False)
class ErrorFacts:
    """What tests know of an error of any class, the simulator's own too.

    Attributes:
      plain: the message without the headline and the drawn example, if it has them; else "".
      shared: whether all processes of the program know of it.
      kernel_error: the underlying error of the kernel or of what it is compared with.
      failure: the check and the call that failed, or None.
      context: the context of the call that failed, where it is another one than the check's.
      others: failures of the same check that look different.
      distinct: of one of these others, whether its cause is certainly another one.
      schedule: that of the failing run, unless the default.
      unconfirmed: whether it is a finding of the proof of order that no run showed.
      analysis: of the kernel's grids, for wrong grids.
      script: the script that reproduces it, once it is written.
      arguments: the call that failed, for messages, if not the drawn one.
    """

    plain: str = ""
    shared: bool = False
    kernel_error: BaseException | None = None
    failure: Any = None
    context: Any = None
    others: tuple[PallasError, ...] = ()
    distinct: bool = False
    schedule: Any = None
    unconfirmed: bool = False
    analysis: Any = None
    script: Any = None
    arguments: Any = None


def facts_of(error: BaseException) -> ErrorFacts:
    """Return what is known of an error, to read and to change; ``with_message`` keeps it."""
    return vars(error).setdefault("_facts", ErrorFacts())


def witness_of(error: BaseException) -> str:
    """Return the order of threads and copies in which an error shows; "" if it is no such one."""
    return facts_of(error).schedule.witness if facts_of(error).schedule is not None else ""


class SpecError(PallasError):
    """A ``KernelSpec`` or its strategy is wrong."""


class DrawTooLargeError(SpecError):
    """A draw does not fit within ``--pallas-max-bytes``, or the check of a call into memory."""


class ProgramError(PallasError):
    """A traced program cannot be written as data, or bytes are no program.

    Attributes:
      name: the primitive or the type that cannot cross; "" if it is something else.
    """

    name = ""


class NotApplicableError(SpecError):
    """A check does not apply to this kernel, or on this backend.

    Attributes:
      final: whether it applies to no other example of the kernel.
    """

    def __init__(self, *args: Any, final: bool = False) -> None:
        """With this message."""
        super().__init__(*args)
        self.final = final


class NeedsIsolation(BaseException):
    """A traced call should run in its own process.

    Not an ``Exception``, so that neither Hypothesis nor a kernel handles it as a failure.
    """

    def __init__(self, reasons: Sequence[str], *, kept: bool = False) -> None:
        """With these reasons; ``kept`` if they apply to later sessions, too."""
        super().__init__(", ".join(reasons))
        self.kept = kept


class UnsupportedKernelError(NotApplicableError):
    """A backend cannot run kernels of this kind, or not on such arguments."""


class ShapeLanguageError(PallasError, ValueError):
    """A shape such as ``"m k, k n"`` cannot be parsed."""


class BackendUnavailableError(PallasError):
    """A selected backend is not available on this machine."""


class TooFewDevicesError(DeviceError):
    """A mesh needs more devices than are available; the test may be skipped."""


class NoPallasCallError(PallasError):
    """A function has no Pallas kernel on a backend, although it must have one."""


class KernelReferenceError(PallasError):
    """The reference raised, or returned values that kernels cannot be compared with."""


class GridError(KernelError):
    """The blocks that the programs of a kernel read and write are wrong."""


class CapacityError(KernelError):
    """A kernel needs more memory than the chip has: a launch of it fails."""


class RaceError(KernelError):
    """Two unordered accesses of the kernel to the same memory, at least one of them a write."""


class DmaError(KernelError):
    """A kernel left DMAs or semaphores behind, or reached a device that was not ready."""


class HangError(KernelError):
    """A step of a test did not end: of an isolated one, its process was killed."""

    timed_out = True


class DeviceLostError(KernelError):
    """A device failed under a kernel, and its process can launch nothing more."""

    timed_out = True  # as after a time limit, the example must not run again there


class CrashError(KernelError):
    """The process of an isolated test died."""


class OutOfMemoryError(KernelError):
    """An isolated test took more memory than ``--pallas-worker-memory``."""


class LeakError(KernelError):
    """A check changed state of the process that would affect later checks."""


class IsolationError(PallasError):
    """A test could not run in its own process."""


class FleetError(PallasError):
    """The workers of a fleet that ran a test were lost."""


class MutantError(PallasError):
    """A mutant could not be made; this is no error of the kernel or its checks."""


class CompileError(KernelError):
    """The compiler of a chip rejected the kernel."""


class CompilerFailedError(KernelError):
    """The compiler of a chip hung, crashed or used too much memory for the kernel."""


class CostError(PallasError, AssertionError):
    """The machine code of a kernel costs more than recorded."""


class GoldenError(PallasError):
    """A golden is damaged, has an unknown format, or would be replaced."""


class MismatchError(PallasError, AssertionError):
    """The kernel's output is wrong."""


class GangError(PallasError):
    """The processes of one program do different things, or one of them did not come in time."""


class PeerError(PallasError, AssertionError):
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
RAISED_BY_KERNEL = (KernelError, NoPallasCallError, KernelReferenceError)

#: Those among them of a kernel that runs nevertheless.
KERNEL_RUNS = (GridError, LeakError)

#: Errors of a test whose process died.
DIED = (HangError, CrashError, OutOfMemoryError)


# Which code is no kernel's: that of the plugin and of the simulator, and that of libraries.


#: The folders of both packages.
FOLDERS = (str(Path(__file__).parent), str(Path(pallas_sim.__file__).parent))


def is_own(file: str) -> bool:
    """Return whether a file of source code is in one of the two packages."""
    return file.startswith(tuple(f"{folder}/" for folder in FOLDERS))


#: The standard library.
_STANDARD = Path(linecache.__file__).parent

#: Parts of the paths of other libraries, which have no kernels.
_LIBRARIES = ("/jax/_src/", "/jax/experimental/mosaic/", "-packages/jaxlib/", "-packages/numpy/")


def is_library(file: str) -> bool:
    """Return whether a file has library code, or code that was generated and cannot be read.

    The constructor of a dataclass is such code, in ``<string>``. From Python 3.13 on, ``linecache``
    has lines of that name in ``python -c``: those of the command, which starts workers of xdist.
    """
    path = Path(file)
    return (
        path.parent == _STANDARD
        or any(part in path.as_posix() for part in _LIBRARIES)
        or file == "<string>"
        or (file.startswith("<") and not linecache.getlines(file))
    )


def raised_line(error: BaseException) -> str:
    """Return the innermost line of a user in the traceback of an error, or "" without one.

    It is ``file:line in function: code``.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not (
            is_own(frame.filename)
            or is_library(frame.filename)
            or "-packages/hypothesis/" in Path(frame.filename).as_posix()
        )
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
