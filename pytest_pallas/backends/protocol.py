"""What a backend is: one object that executes a call and tells how it went."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pytest_pallas.backends.variations import Fill, Probe, Schedule
from pytest_pallas.devices.targets import DEFAULT_TARGETS, TARGETS, Target
from pytest_pallas.findings import Finding
from pytest_pallas.notes import Note


@contextmanager
def expected_warnings() -> Generator[None]:
    """Ignore them while a kernel is lowered, also where warnings are errors."""
    with warnings.catch_warnings():
        # JAX 0.12 deprecates its Triton route, which every pallas_call of pl alone takes on a GPU.
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        # Of SparseCores: pltpu.sync_copy and emit_pipeline pass a semaphore themselves.
        warnings.filterwarnings("ignore", message="Destination semaphore is ignored")
        yield


#: ``"simulating"``: our own machine, in this thread. ``"interpreting"``: an interpreter of JAX.
Kind = Literal["simulating", "interpreting", "compiling", "hardware"]


class Observer(Protocol):
    """Who is told how calls go on, by the backends that execute them."""

    def traced(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call is about to be executed.

        Args:
          call: the call.
          jaxpr: what it was traced to; None for one that is not jitted.
          kernels: its Pallas kernels (``analysis.KernelCall``).

        Raises:
          BaseException: one that is no ``Exception`` keeps the call from being executed.
        """
        ...

    def simulated(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call is about to be simulated, in this thread; the arguments are those of ``traced``.

        Nothing can crash or hang there but Python: the function that is traced, and callbacks.
        """
        ...

    def ended(self, call: Call) -> None:
        """A call has been executed or simulated, or has failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a test runs a kernel, whatever it calls: every call of a check has the same.

    Attributes:
      devices: how many devices the call runs on.
      jit: False to call the function as it is, because it needs the values of its arguments.
      timeout: seconds after which a simulated device that waits is taken to wait for ever.
      races: whether to look for races, where the backend can and the kernel could have some.
      dma: whether it is an error to leave DMAs without a wait, or semaphores that are not 0.
      dump: folder to keep what a compiling backend makes of the call, or None.
      observer: who is told before and after the call is executed, or None.
      mutant: a mistake to make in its kernels (``mutation.Mutant``), or None.
    """

    devices: int = 1
    jit: bool = True
    timeout: float = 60.0
    races: bool = True
    dma: bool = True
    dump: str | None = None
    observer: Observer | None = None
    mutant: Any = None


@dataclass(frozen=True, kw_only=True)
class Configured:
    """What runs under ``RunSettings``, which can also be read as attributes of it.

    Attributes:
      settings: how it runs.
    """

    settings: RunSettings = field(default_factory=RunSettings)

    @property
    def devices(self) -> int:
        """See ``RunSettings``."""
        return self.settings.devices

    @property
    def jit(self) -> bool:
        """See ``RunSettings``."""
        return self.settings.jit

    @property
    def timeout(self) -> float:
        """See ``RunSettings``."""
        return self.settings.timeout

    @property
    def races(self) -> bool:
        """See ``RunSettings``."""
        return self.settings.races

    @property
    def dma(self) -> bool:
        """See ``RunSettings``."""
        return self.settings.dma

    @property
    def dump(self) -> str | None:
        """See ``RunSettings``."""
        return self.settings.dump

    @property
    def observer(self) -> Observer | None:
        """See ``RunSettings``."""
        return self.settings.observer

    @property
    def mutant(self) -> Any:
        """See ``RunSettings``."""
        return self.settings.mutant

    def with_settings(self, **changes: Any) -> Self:
        """The same under other settings.

        Raises:
          TypeError: ``RunSettings`` has no such field.
        """
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True, kw_only=True)
class Call(Configured):
    """One call to execute: ``function(*args, **options)``.

    Attributes:
      function: what calls the kernel.
      args: pytrees of arrays; leaves that are no arrays are passed as they are, untraced.
      options: keyword arguments, passed untraced.
      needs_kernel: False if the call may contain no Pallas kernel at all.
      fill: what memory is filled with that nobody has written; None for NaN and extreme integers.
        Backends without ``fills`` do not look at it.
      probe: what is asked of the run besides. Backends without ``probes`` do not look at it.
      schedule: the order in which the simulator does what has none. Others do not look at it.
      settings: the rest, which all calls of a check have in common.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_kernel: bool = True
    fill: Fill | None = None
    probe: Probe = ""
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call went.

    Attributes:
      values: what it returned, as a pytree of numpy arrays; None if it raised.
      inputs: the arguments after the call, as numpy arrays; None where they were deleted.
      error: what it raised, made readable; None if it returned.
      seconds: wall time including tracing and compilation.
      kernels: the Pallas kernels that were traced (``analysis.KernelCall``); empty without jit.
      findings: what was found wrong besides, whatever it returned.
      probe_results: the answers to ``Call.probe``.
      report: what the compiler said, on a compiling backend (``compilers.CompileReport``).
      notes: what a reader of the record should know; a plain string is a note of no kind.
      unverified: behavior of the simulated chip that the run used and no document describes.
    """

    values: Any = None
    inputs: tuple[Any, ...] | None = None
    error: Exception | None = None
    seconds: float = 0.0
    kernels: tuple[Any, ...] = ()
    findings: tuple[Finding, ...] = ()
    probe_results: tuple[Any, ...] = ()
    report: Any = None
    notes: tuple[Note | str, ...] = ()
    unverified: tuple[str, ...] = ()

    def unwrap(self) -> Any:
        """The values.

        Raises:
          Exception: ``error``, if the call raised.
        """
        if self.error is not None:
            raise self.error
        return self.values


@runtime_checkable
class Backend(Protocol):
    """A way to execute a kernel.

    Attributes:
      name: the family, e.g. ``"tpu-interpret"``.
      kind: what it proves; see ``Kind``.
      platform: which kernel of a spec it takes: ``"tpu"``, ``"gpu"``, or ``"any"``.
      target: the chip it stands for, or None.
    """

    @property
    def name(self) -> str:
        """The family."""
        ...

    @property
    def kind(self) -> Kind:
        """What it proves."""
        ...

    @property
    def platform(self) -> str:
        """Which kernel of a spec it takes."""
        ...

    @property
    def target(self) -> Target | None:
        """The chip it stands for."""
        ...

    def available(self) -> str | None:
        """None if it can run here, else what was looked for and what to do. May import jax."""
        ...

    def run(self, call: Call) -> Outcome:
        """Execute a call, or compile it if that is the backend's kind.

        Never raises on behalf of the kernel: the outcome holds the error.
        """
        ...


def chip_of(backend: Backend) -> Target:
    """The chip that a backend stands for; kernels for any platform run as on a TPU."""
    platform = "gpu" if backend.platform == "gpu" else "tpu"
    return backend.target or TARGETS[DEFAULT_TARGETS[platform]]


def label(backend: Backend) -> str:
    """The backend as written on the command line: ``name`` or ``name:target``."""
    return backend.name if backend.target is None else f"{backend.name}:{backend.target.name}"
