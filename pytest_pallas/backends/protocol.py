"""What backends execute, and what they return: the seam between checks and ways to run a kernel.

A ``Backend`` executes a ``Call`` and returns an ``Outcome``. A call has ``RunSettings``, which all
calls of a check share, and may vary what must not affect the output: the ``Fill`` of uninitialized
memory and the ``Schedule`` of concurrent steps. A ``Probe`` asks for more results.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Target
from pallas_sim.coverage import Reached
from pallas_sim.findings import Finding
from pytest_pallas.record import Note

#: Uninitialized memory of a kernel: the padding of a block beyond the edge of its array, outputs,
#: and scratch memory, which includes allocations of the body.
Place = Literal["padding", "output", "scratch"]


#: The value of a fill; see ``fill_value``.
Contents = Literal["high", "low", "zero"]


def fill_value(fill: Contents, dtype: Any) -> Any:
    """Return the value of a fill in an array of ``dtype``; None keeps the contents.

    ``high`` is the largest finite number, and True. ``low`` is the lowest finite number of floats,
    0 of integers (which have their lowest anyway), False. ``zero`` is 0 and False, the usual
    contents of XLA's buffers.
    """
    import jax.numpy as jnp

    if jnp.issubdtype(dtype, jnp.bool):
        return fill == "high" or 0
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max) if fill == "high" else 0
    if fill == "zero":
        return 0 if jnp.issubdtype(dtype, jnp.number) else None
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    return jnp.finfo(dtype).max if fill == "high" else jnp.finfo(dtype).min


#: The value of each fill in words, for messages.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "": "NaN (for integers, an end of their range)",
        "high": "the largest finite number (for bools, True)",
        "low": "the lowest finite number (for integers 0, for bools False)",
        "zero": "0 (for bools, False)",
    }
)

#: The memory that is filled, by name, and its description for messages.
PLACES: Mapping[str, tuple[frozenset[Place], str]] = MappingProxyType(
    {
        "": (frozenset({"padding", "output", "scratch"}), "uninitialized memory"),
        "padding": (frozenset({"padding"}), "elements beyond the edges of arrays"),
        "output": (frozenset({"output"}), "uninitialized outputs"),
        "scratch": (frozenset({"scratch"}), "uninitialized scratch memory"),
        "memory": (
            frozenset({"output", "scratch"}),
            "uninitialized scratch memory and outputs",
        ),
    }
)


@dataclass(frozen=True)
class Fill:
    """The contents of uninitialized memory.

    Attributes:
      value: see ``fill_value``.
      where: the memory; a name of ``PLACES``.
    """

    value: Contents
    where: Literal["", "padding", "output", "scratch", "memory"] = ""

    def __str__(self) -> str:
        """In words: ``0 (for bools, False) in uninitialized scratch memory``."""
        return f"{WORDS[self.value]} in {self.memory}"

    @property
    def memory(self) -> str:
        """The memory, such as ``uninitialized scratch memory``."""
        return PLACES[self.where][1]


def filler_of(fill: Fill | None) -> Callable[[Any, str], Any] | None:
    """Return the simulator's fill value for a dtype and a place; None for its default."""
    if fill is None:
        return None
    value, places = fill.value, PLACES[fill.where][0]
    return lambda dtype, where: fill_value(value, dtype) if where in places else None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One legal order of copies, devices, cores and the programs of ``parallel`` grid dimensions.

    Attributes:
      seed: determines the order of all concurrent steps.
      cores: number of cores of a device that share the programs of parallel dimensions.
      witness: the text of a ``pallas_sim.Witness``, whose order counts in place of the seed; or "".
      story: that order in lines, for messages.
    """

    seed: int = 0
    cores: int = 1
    witness: str = ""
    story: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, exploration: Any) -> Schedule:
        """Return the order of the witness of a ``pallas_sim.Exploration``."""
        return cls(witness=str(exploration.witness), story=exploration.story)

    def __str__(self) -> str:
        """For messages: the difference from the default schedule."""
        if self.witness:
            return "the order of the witness"
        parts = [f"seed {self.seed} of the schedule"] if self.seed or self.cores == 1 else []
        if self.cores > 1:
            parts.append(f"parallel programs divided over {self.cores} cores")
        return ", ".join(parts)


#: ``"outputs"``: the outputs of each kernel. ``"separate"``: no results, but outputs that are
#: aliased to an input get memory of their own. ``"late"``: no results, but blocks are fetched just
#: before the body that reads them. ``"loads"``: the values of each load and copy.
Probe = Literal["", "outputs", "separate", "late", "loads"]


@contextmanager
def expected_warnings() -> Generator[None]:
    """Ignore these warnings while a kernel is lowered, even if warnings are errors."""
    with warnings.catch_warnings():
        # JAX 0.12 deprecates its Triton lowering, which a pallas_call with only pl uses on a GPU.
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        # Of SparseCores: pltpu.sync_copy and emit_pipeline pass a semaphore themselves.
        warnings.filterwarnings("ignore", message="Destination semaphore is ignored")
        yield


#: ``"simulating"``: our own machine, in this thread. ``"interpreting"``: an interpreter of JAX.
Kind = Literal["simulating", "interpreting", "compiling", "hardware"]


class Observer:
    """Receives events of examples, and of their calls from the backends; does nothing itself."""

    def example(self, builder: Any, facts: Sequence[Any], call: str = "", goal: Any = None) -> None:
        """An example begins.

        Args:
          builder: the ``Result`` of its check.
          facts: what was drawn, as ``Fact``.
          call: the name of the draw (``draw_name``); "" for a call that a test gives.
          goal: the sizes and choices of the draw, a ``Goal``.
        """

    def traced(
        self, call: Call, jaxpr: Any, kernels: Sequence[Any], *, simulated: bool = False
    ) -> None:
        """A call is about to be executed.

        Args:
          call: the call.
          jaxpr: its jaxpr; None for a call that is not jitted.
          kernels: its Pallas kernels (``analysis.KernelCall``).
          simulated: whether a simulator runs it, in this thread. Only Python code can crash or hang
            there: the traced function, and callbacks.

        Raises:
          BaseException: an error that is not an ``Exception`` prevents the execution.
        """

    def ended(self, call: Call) -> None:
        """A call has been executed or simulated, or has failed."""


UNOBSERVED = Observer()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a test runs a kernel: all calls of a check have the same settings.

    Attributes:
      devices: how many devices the call runs on.
      jit: False to call the function as it is, because it needs the values of its arguments.
      timeout: seconds after which a blocked simulated device counts as a deadlock.
      races: whether to detect races, if the backend can and the kernel could have some.
      dma: whether DMAs without a wait and semaphores that are not 0 at the end are errors.
      dump: folder for the outputs of a compiling backend, or None.
      observer: receives events before and after the execution.
      rewriting: makes another program of the traced one, a closed jaxpr, before it runs; None
        keeps it. Equal and hashable where the programs are the same: caches of runs rely on it.
      arithmetic: how the simulator computes: ``"chip"`` or ``"float32"``; "" for the default of its
        chip.
      read_fences: which TMA copies need a fence after reads on a simulated GPU: see
        ``pallas_sim.simulate``.
      schedules: the most runs of the call in different orders, for the sanitizers of schedules.
      witness: the order in which they run the call in place of all others; "" for none.
      saved_witness: likewise, of a failure that is repeated. It counts for the call in which it was
        found: who mends a kernel has another, which runs as without it.
    """

    devices: int = 1
    jit: bool = True
    timeout: float = 60.0
    races: bool = True
    dma: bool = True
    dump: str | None = None
    observer: Observer = UNOBSERVED
    rewriting: Callable[[Any], Any] | None = None
    arithmetic: str = ""
    read_fences: str = ""
    schedules: int = 1
    witness: str = ""
    saved_witness: str = ""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call to execute: ``function(*args, **options)``.

    Attributes:
      function: what calls the kernel.
      args: pytrees of arrays; leaves that are no arrays are passed as they are, untraced.
      options: keyword arguments, passed untraced.
      needs_kernel: False if the call may contain no Pallas kernel at all.
      fill: the fill of uninitialized memory; None for NaN and extreme integers. Backends without
        ``fills`` ignore it.
      probe: additional results of the run. Backends without ``probes`` ignore it.
      schedule: the order of concurrent steps on the simulator. Other backends ignore it.
      settings: the settings, which all calls of a check share.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_kernel: bool = True
    fill: Fill | None = None
    probe: Probe = ""
    schedule: Schedule = field(default_factory=Schedule)
    settings: RunSettings = field(default_factory=RunSettings)

    def with_settings(self, **changes: Any) -> Call:
        """Return the same call with other settings.

        Raises:
          TypeError: ``RunSettings`` has no such field.
        """
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call.

    Attributes:
      values: the outputs, as a pytree of numpy arrays; None if the call raised.
      inputs: the arguments after the call, as numpy arrays; None where they were deleted.
      error: the error, in readable form; None if the call returned.
      seconds: wall time including tracing and compilation.
      kernels: the Pallas kernels that were traced (``analysis.KernelCall``); empty without jit.
      findings: errors that the simulator found besides, whatever the call returned.
      probe_results: the results of ``Call.probe``.
      report: the compiler's report, on a compiling backend (``compilers.CompileReport``).
      notes: notes for the record; a plain string is a note of no kind.
      unverified: undocumented behavior of the simulated chip that the run used.
      idle: what the simulator knows of kernels that had no programs: name, line and grid.
      coverage: which ways the kernels went on the simulator, and did not go
        (``pallas_sim.coverage.Reached``).
      steps: the number of equations that the simulator evaluated; 0 on other backends.
      every_order: whether the findings and the values of a simulated run are those of every order
        of its threads and copies.
      by_seed: whether a simulated run had an order besides, which only a seed changes: of the
        programs of a grid, the rounds of a parallel loop, or the rows of a copy.
      exploration: the ``pallas_sim.Exploration`` that showed or withdrew its races, or None.
      story: the order of a witness in lines; () of other schedules.
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
    idle: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    coverage: tuple[Reached, ...] = ()
    steps: int = 0
    every_order: bool = False
    by_seed: bool = False
    exploration: Any = None
    story: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        import jax
        import numpy as np

        leaves = jax.tree.leaves((self.values, self.inputs, self.probe_results))
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))

    def unwrap(self) -> Any:
        """Return the values.

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
      kind: see ``Kind``.
      platform: the platform of its kernels: ``"tpu"``, ``"gpu"``, or ``"any"``.
      target: the chip it stands for, or None.
    """

    @property
    def name(self) -> str:
        """The family."""
        ...

    @property
    def kind(self) -> Kind:
        """See ``Kind``."""
        ...

    @property
    def platform(self) -> str:
        """The platform of its kernels."""
        ...

    @property
    def target(self) -> Target | None:
        """The chip it stands for."""
        ...

    def available(self) -> str | None:
        """None if it can run here, else the reason and the remedy. May import jax."""
        ...

    def run(self, call: Call) -> Outcome:
        """Execute a call, or compile it, depending on the backend's kind.

        It does not raise the kernel's errors: the outcome has them.
        """
        ...


def chip_of(backend: Backend) -> Target:
    """Return the chip that a backend stands for; kernels for any platform run as on a TPU."""
    platform = "gpu" if backend.platform == "gpu" else "tpu"
    return backend.target or TARGETS[DEFAULT_TARGETS[platform]]


def label(backend: Backend) -> str:
    """Return the backend as written on the command line: ``name`` or ``name:target``."""
    return backend.name if backend.target is None else f"{backend.name}:{backend.target.name}"


def code_of(function: Any) -> CodeType | None:
    """Find the code of a function, also of a jitted function or a partial; None without one."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = inspect.unwrap(function)
        else:
            return getattr(function, "__code__", None)
