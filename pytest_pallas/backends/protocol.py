"""What a backend is: one object that executes a call and tells how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from pytest_pallas.backends.targets import Target

Kind = Literal["interpreting", "compiling", "hardware"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call to execute: ``function(*args, **options)``.

    Attributes:
      function: what calls the kernel.
      args: pytrees of arrays; leaves that are no arrays are passed as they are, untraced.
      options: keyword arguments, passed untraced.
      devices: how many devices the call runs on.
      jit: False to call the function as it is, because it needs the values of its arguments.
      needs_kernel: False if the call may contain no Pallas kernel at all.
      timeout: seconds after which a simulated device that waits is taken to wait for ever.
      races: whether to look for races, where the backend can and the kernel could have some.
      dump: folder to keep what a compiling backend makes of the call, or None.
      fill: what an interpreter fills memory with that nobody has written: the name of one of
        ``fills.FILLS``, or "" for NaN and extreme integers. Other backends do not look at it.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    devices: int = 1
    jit: bool = True
    needs_kernel: bool = True
    timeout: float = 60.0
    races: bool = True
    dump: str | None = None
    fill: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call went.

    Attributes:
      values: what it returned, as a pytree of numpy arrays; None if it raised.
      inputs: the arguments after the call, as numpy arrays; None where they were deleted.
      error: what it raised, made readable; None if it returned.
      seconds: wall time including tracing and compilation.
      kernels: the Pallas kernels that were traced (``analysis.KernelCall``); empty without jit.
      report: what the compiler said, on a compiling backend (``compilers.CompileReport``).
      notes: what a reader of the record should know, such as "races: on".
    """

    values: Any = None
    inputs: tuple[Any, ...] | None = None
    error: Exception | None = None
    seconds: float = 0.0
    kernels: tuple[Any, ...] = ()
    report: Any = None
    notes: tuple[str, ...] = ()

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


def label(backend: Backend) -> str:
    """The backend as written on the command line: ``name`` or ``name:target``."""
    return backend.name if backend.target is None else f"{backend.name}:{backend.target.name}"
