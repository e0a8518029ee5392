"""The state of a run besides its values: a ``Machine`` with its ``Device``s and ``Thread``s.

A machine has what all share: the target, limits, findings, the record of the run, the scheduler and
the clock. A device has what others can reach of its memory. A thread is a core that evaluates a
program: where it is in grids and kernels. ``evaluation`` runs programs on a thread, ``copies`` says
what copies and semaphores do, and ``order`` what the record proves.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from pallas_sim.chips import TARGETS, Accumulations, accumulations, arithmetic_of, cores_of
from pallas_sim.choices import Choices
from pallas_sim.counts import Coverage
from pallas_sim.errors import DeadlockError, OptionError, SimulationError, SimulationLimitError
from pallas_sim.findings import Finding, Owner, Wait
from pallas_sim.findings import Kind as FindingKind
from pallas_sim.functions import Errors, hashed_errors
from pallas_sim.memory import AllocationKey, Ref, Region
from pallas_sim.recording import Copy, Entered, Recording, Semaphore, Side
from pallas_sim.scheduler import Scheduler
from pallas_sim.sites import SiteLog
from pallas_sim.timeline import Kind as SpanKind
from pallas_sim.timeline import Timeline, TimelineSpan
from pallas_sim.transforms import Elsewhere

#: Gives what uninitialized memory of a dtype holds, or None for the default of that dtype.
#: The second argument is the kind of memory: ``"padding"``, ``"output"`` or ``"scratch"``.
Filler = Callable[[np.dtype[Any], str], Any]


#: Which TMA copies need a fence (``commit_smem``) after threads have read what they overwrite:
#: those that the kernel starts itself, also those of JAX's pipelines, or none. The first is the
#: default. docs/simulator.md has the reasons.
READ_FENCES = ("kernel", "all", "none")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may use.

    Attributes:
      steps: how many equations it may evaluate. A kernel that needs more is taken not to end.
      bytes: how much memory its arrays may take at a time.
      devices: the most devices of a mesh.
      out_of_bounds: how a run ends in which an access was beyond an edge. It goes on in any case:
        such a load gives what uninitialized memory holds, and a store or copy leaves out what is
        not there. ``"raise"``: with a ``BoundsError`` that has all findings; ``"fill"``: as any
        other, and the access is among the findings.
    """

    steps: int = 50_000_000
    bytes: int = 8 << 30
    devices: int = 4096
    out_of_bounds: Literal["raise", "fill"] = "raise"

    def __post_init__(self) -> None:
        """Reject what no run can do.

        Raises:
          OptionError: ``out_of_bounds`` is neither of both.
        """
        if self.out_of_bounds not in ("raise", "fill"):
            raise OptionError(
                f'out_of_bounds is "raise" or "fill", not {self.out_of_bounds!r}: both go on after '
                "an access beyond an edge"
            )


@dataclass(eq=False)
class Machine:
    """One simulated run.

    Attributes:
      target: name of the chip, such as ``"v6e"``.
      seed: decides everything that hardware may do in any order, and the core's random numbers.
      cores: over how many cores of the chip a kernel's parallel programs are divided.
      limits: what the run may use.
      fill: what uninitialized memory holds; None for NaN and extreme integers.
      findings: what was found so far.
      notes: behavior of the chip that the run used and no document describes.
      idle: the grids of kernels that had no programs, by name and source line of the kernel.
      steps: equations evaluated so far.
      fallbacks: how often JAX evaluated a primitive that has no rule, by name.
      arithmetic: ``"chip"`` or ``"float32"``, as of ``chips.arithmetic_of``; "" for the default.
      error_seed: decides the errors of functions; None for ``seed``. Runs that differ in ``seed``
        only have the same errors with it, as on a chip.
      read_fences: which TMA copies need a fence after the reads of what they overwrite: see
        ``READ_FENCES``.
      outputs: is called with each kernel's equation and outputs, or None.
      ahead: whether the next block of an operand is fetched while the body runs, as a chip does.
      separate: whether outputs that alias a pipelined input get memory of their own.
      copies: those that were started and are not done.
      devices: by number; see ``device``.
      owners: the numbers of the threads. Each core has one, whatever it runs.
      lasting: semaphores that outlive their kernel.
      shared: arrays that copies in flight access after their kernel, by identity.
      meetings: where threads wait for each other; see ``cores.meet``.
      beyond: whether an access was beyond an edge; see ``edges``.
      uses: what the program uses of the outputs of its kernels; see ``liveness``.
      monitored: whether the recording is read for what is out of order.
      drops_indices: whether TMA copies lose the index of an axis of one tile, as on a chip.
      refuses: whether a kernel that JAX or Mosaic refuses is an error: see ``refusals``.
      named: whether the chip was named, so that kernels that show no platform are for it, too.
      recording: what threads did to shared memory and semaphores.
      engines: what moves beside the threads of a GPU.
      shown: keys of the findings about phases that this run itself shows.
      coverage: counts which ways kernels went.
      timeline: keeps what happened when, or None.
      shared_bytes: gives the bytes of shared memory that a compiler counts for a block of a kernel
        of the Triton route, by its equation, or None if it does not say; None where no compiler is.
      sites: leaves out operations that synchronise, and notes what others do; or None.
      inspector: is called before and after each equation, or None. A timeline needs one: without,
        equations are counted a program at a time.
    """

    target: str = "v6e"
    seed: int = 0
    cores: int = 1
    limits: Limits = field(default_factory=Limits)
    fill: Filler | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    idle: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    steps: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    arithmetic: str = ""
    error_seed: int | None = None
    read_fences: str = ""
    outputs: Callable[[Any, list[Any]], None] | None = None
    ahead: bool = True
    separate: bool = False
    copies: list[Copy] = field(default_factory=list)
    devices: dict[int, Device] = field(default_factory=dict)
    owners: dict[Owner, int] = field(default_factory=dict)
    lasting: list[Semaphore] = field(default_factory=list)
    shared: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    meetings: dict[Any, Any] = field(default_factory=dict)
    beyond: bool = False
    uses: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    monitored: bool = True
    drops_indices: bool = True
    refuses: bool = True
    named: bool = False
    recording: Recording = field(default_factory=Recording)
    engines: list[Engines] = field(default_factory=list["Engines"])
    shown: set[Any] = field(default_factory=set[Any])
    coverage: Coverage = field(default_factory=Coverage)
    timeline: Timeline | None = None
    sites: SiteLog | None = None
    inspector: StepObserver | None = None
    shared_bytes: Callable[[Any], int | None] | None = None
    _kept: dict[int, tuple[weakref.ref[Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count equation by equation where there is a timeline.

        Raises:
          OptionError: there is no such choice of fences.
        """
        self.read_fences = self.read_fences or READ_FENCES[0]
        if self.read_fences not in READ_FENCES:
            valid = ", ".join(READ_FENCES)
            raise OptionError(f"unknown read_fences {self.read_fences!r}; valid: {valid}")
        if self.timeline is not None:
            self.keep_timeline(self.timeline)

    def keep_timeline(self, timeline: Timeline) -> None:
        """Keep a timeline of the run from here on."""
        self.timeline = timeline
        timeline.steps = lambda: self.steps
        if self.inspector is None:
            self.inspector = StepObserver()

    @cached_property
    def platform(self) -> str:
        """``"tpu"`` or ``"gpu"``."""
        return TARGETS[self.target].platform

    @cached_property
    def accumulations(self) -> Accumulations:
        """How its tensor cores add products; empty if sums are those of float32.

        Raises:
          OptionError: there is no such arithmetic, or that of the chip is not known.
        """
        return accumulations(self.target, self.arithmetic)

    @cached_property
    def multiplies_in_passes(self) -> bool:
        """Whether it is a TPU that multiplies float32 in passes of bfloat16; see ``products``.

        Raises:
          OptionError: as of ``accumulations``.
        """
        return self.platform == "tpu" and arithmetic_of(self.target, self.arithmetic) == "chip"

    @cached_property
    def errors_of_functions(self) -> Errors | None:
        """The errors of elementwise functions in kernels; None if they have those of numpy.

        Raises:
          OptionError: as of ``accumulations``.
        """
        if self.platform != "gpu" or not self.accumulations:
            return None
        return hashed_errors(self.seed if self.error_seed is None else self.error_seed)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Decides which device or core goes on."""
        return Scheduler(self.choices, Thread.deadlock)

    def device(self, number: int) -> Device:
        """Return a device by its number."""
        device = self.devices.get(number)
        if device is None:
            device = self.devices[number] = Device(number)
        return device

    @cached_property
    def choices(self) -> Choices:
        """Decides what may happen in any order."""
        return Choices(self.seed)

    def count(self, steps: int) -> None:
        """Note that so many equations are evaluated.

        Raises:
          SimulationLimitError: there were too many.
        """
        self.steps += steps
        if self.steps > self.limits.steps:
            raise SimulationLimitError(
                f"stopped after {self.limits.steps:,} equations: a loop does not end, or the call "
                "is too large to simulate"
            )

    def require_programs(self, grid: Sequence[int]) -> None:
        """Reject a grid that has more programs than equations may be evaluated.

        Raises:
          SimulationLimitError: it has.
        """
        programs = math.prod(grid)
        if programs > self.limits.steps:
            raise SimulationLimitError(
                f"the grid has {programs:,} programs, and a run may evaluate "
                f"{self.limits.steps:,} equations"
            )

    def require(self, needed: int, what: str) -> None:
        """Reject an array of ``needed`` bytes that does not fit.

        Raises:
          SimulationLimitError: it is larger than the memory of the run.
        """
        if needed > self.limits.bytes:
            raise SimulationLimitError(
                f"{what} needs {needed:,} bytes, and the simulated memory has {self.limits.bytes:,}"
            )

    def require_devices(self, count: int) -> None:
        """Reject a mesh that is too large.

        Raises:
          SimulationLimitError: it has more devices than the run may have.
        """
        if count > self.limits.devices:
            raise SimulationLimitError(
                f"the mesh has {count:,} devices, and a simulated run at most "
                f"{self.limits.devices:,}; simulate(..., limits=Limits(devices={count})) allows it"
            )

    def report(self, finding: Finding) -> None:
        """Keep a finding, once for each place of the kernel and kind.

        One whose value reaches something stands for one whose value is dropped.
        """
        known = next((known for known in self.findings if known.key == finding.key), None)
        if known is None:
            self.findings.append(finding)
            if self.timeline is not None:
                self.timeline.mark(finding)
        elif known.dropped and not finding.dropped:
            self.findings[self.findings.index(known)] = finding

    def drop(self, output: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> None:
        """Note that only ``kept`` elements reach something, of an output that is only written."""
        self._kept[id(output)] = (weakref.ref(output), kept)

    def dropped(self) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Yield the outputs that are not kept as a whole, and which elements are."""
        for key, (output, kept) in list(self._kept.items()):
            array = output()
            if array is None:
                del self._kept[key]
            else:
                yield array, kept

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def uninitialized(
        self, shape: tuple[int, ...], dtype: Any, purpose: str
    ) -> np.ndarray[Any, Any]:
        """Make uninitialized memory.

        Args:
          shape: of the memory.
          dtype: of its elements.
          purpose: ``"padding"``, ``"output"`` or ``"scratch"``.
        """
        dtype = np.dtype(dtype)
        self.require(math.prod(shape) * dtype.itemsize, f"an array {dtype}{list(shape)}")
        value = None if self.fill is None else self.fill(dtype, purpose)
        return np.full(shape, default_fill(dtype) if value is None else value, dtype)


def default_fill(dtype: np.dtype[Any]) -> Any:
    """Return what uninitialized memory of a dtype holds: NaN, an extreme integer, or True.

    It is never 0, because a kernel that counts on 0 would pass. JAX writes nearly the same on a TPU
    with ``jax_pallas_poison_buffers``.
    """
    if dtype.kind == "c":
        return complex(math.nan, math.nan)
    if dtype.kind in "fV":
        return _nan(dtype)
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    if dtype.kind == "u":
        return np.iinfo(dtype).max
    return np.ones((), dtype)[()]


def _nan(dtype: np.dtype[Any]) -> Any:
    """Return NaN, or where a dtype has none an extreme value, which is not 0."""
    import ml_dtypes

    try:
        info = ml_dtypes.finfo(dtype)
    except ValueError:
        limits = ml_dtypes.iinfo(dtype)
        return limits.min or limits.max
    nan = np.array(np.nan, np.float32).astype(dtype)
    return nan if np.isnan(nan.astype(np.float32)) else info.min


class StepObserver:
    """Sees each equation before and after a run evaluates it: see ``Machine.inspector``.

    This one only counts equations one by one, which is the time of a timeline. ``inspector`` and
    ``inspector`` has those that look at values.

    Attributes:
      raised: what it raised itself, which ends the run as it is.
    """

    raised: BaseException | None = None

    def steps(self, steps: Sequence[Any], thread: Thread, env: Sequence[Any]) -> Iterator[Any]:
        """Yield the steps of a program, each to be evaluated before the next one is taken.

        Args:
          steps: ``evaluation.Step``s of the program, which were counted all at once.
          thread: who evaluates it.
          env: the values of its slots.
        """
        machine = thread.machine
        machine.steps -= len(steps)
        for step in steps:
            machine.steps += 1
            yield step

    def written(self, copy: Copy) -> None:
        """Note that a chunk of a copy was written."""

    def learn(self, jaxpr: Any) -> None:
        """Take note of a program that is about to run."""

    def require(self) -> None:
        """Reject an observer that looks for what no program has."""


# A core or device that evaluates a program: where it is, and what others can reach of it.


@dataclass(eq=False)
class GridPosition:
    """The grid point that a core is at.

    Attributes:
      point: the program's index along each dimension that the body counts.
      sizes: of those dimensions.
      shown: how many of them messages name; None for all.
    """

    point: tuple[int, ...]
    sizes: tuple[int, ...]
    shown: int | None = None


class Engines(Protocol):
    """What moves beside the threads of a launch on a GPU."""

    def started(self) -> Sequence[Any]:
        """Return the operations that are not done."""
        ...

    def movable(self) -> Sequence[Any]:
        """Return the operations whose next step can happen."""
        ...

    def move(self, operation: Any) -> Sequence[Side]:
        """Let the next step happen, and return the memory that it accesses."""
        ...


class AccessMonitor(Protocol):
    """Notes accesses to memory that others access at the same time, outside of the recording."""

    def note(
        self, thread: Thread, region: Region, name: str, line: str, *, writes: bool, adds: bool
    ) -> None:
        """Note an access, and report one that is in conflict with it."""
        ...


@dataclass(eq=False)
class Device:
    """One device: what of its memory others can reach.

    Attributes:
      number: in the mesh, row by row.
      memory: the allocations that are alive.
      left: launches of kernels that have ended.
      freed: the allocations that have ended in kernels that have not.
      launches: how often each kernel was entered.
      barriers: its barrier semaphores, by tag or ``collective_id``.
      expected: what is to be done when an allocation is there, because others reached it before.
      ahead: on a GPU, the kernels that may not have ended when the next one begins.
      written: its own memory of the values that a kernel wrote in place, by their identity.
    """

    number: int
    memory: dict[AllocationKey, Ref] = field(default_factory=dict)
    left: set[Any] = field(default_factory=set)
    freed: set[AllocationKey] = field(default_factory=set)
    launches: Counter[Any] = field(default_factory=Counter)
    barriers: dict[Any, Semaphore] = field(default_factory=dict)
    expected: dict[AllocationKey, list[Callable[[Ref], None]]] = field(default_factory=dict)
    ahead: list[Any] = field(default_factory=list)
    written: dict[int, tuple[weakref.ref[Any], Any]] = field(default_factory=dict)

    def memory_of(self, value: np.ndarray[Any, Any], *, writes: bool) -> np.ndarray[Any, Any]:
        """Return where the device has a value: the value itself until a kernel writes it in place.

        Values of JAX do not change, and each device has memory of its own for one that several
        devices have. Kernels that get the value later see what was written.

        Args:
          value: an operand of a kernel.
          writes: whether the kernel writes it where it is.
        """
        key = id(value)
        known, memory = self.written.get(key, (None, None))
        if known is not None and known() is value:
            assert memory is not None
            return memory
        if not writes:
            return value
        memory = np.array(value)
        self.written[key] = (weakref.ref(value, lambda _: self.written.pop(key, None)), memory)
        return memory


@dataclass(eq=False)
class Thread:
    """One core that evaluates a program.

    Attributes:
      machine: the run it belongs to.
      grids: the grids it is inside of, the innermost last.
      kernels: the kernels it is inside of, by name, the innermost last.
      generator: the state of the core's own random number generator, once it is seeded.
      axes: the index of this device, and core, along each axis of its meshes, by name.
      units: the state of units that a kernel drives by hand, by name.
      sizes: of the axes of the mesh of devices.
      cores: sizes of the axes of its mesh of cores.
      others: sizes of the axes of all meshes of cores that run the same kernel.
      owner: who it is, for findings.
      number: of the thread, in the recording.
      launch: the kernel it is inside of that others can reach: which, and how often it was entered.
      recorded: whether what it does to memory is recorded.
      collective: the barrier semaphore of the kernel it is inside of, or None.
      in_turns: whether it runs one after the other what other chips run on several cores.
      access_monitor: notes what it does to memory that others use at the same time, or None.
      own_recording: a recording of what it does, in place of the machine's, or None.
    """

    machine: Machine
    grids: list[GridPosition] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    generator: np.random.Generator | None = None
    axes: dict[str, int] = field(default_factory=dict)
    units: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    cores: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    owner: Owner = field(default_factory=Owner)
    number: int = -1
    launch: tuple[Any, ...] = ()
    recorded: bool = False
    collective: Any = None
    in_turns: bool = False
    access_monitor: AccessMonitor | None = None
    own_recording: Recording | None = None

    #: Whether it runs on warps of a Mosaic GPU kernel: a ``GpuThread``.
    is_warpgroup: ClassVar[bool] = False

    @property
    def approximates(self) -> bool:
        """Whether its kernel asks for approximate functions: ``approx_math`` of Mosaic GPU."""
        return False

    def __post_init__(self) -> None:
        """Take a number, unless it has one."""
        if self.number < 0:
            owners = self.machine.owners
            self.number = owners.setdefault(self.owner, len(owners))

    def child(self, owner: Owner, **changes: Any) -> Thread:
        """Return a thread that goes on from here beside others."""
        kept: dict[str, Any] = {
            "grids": list(self.grids),
            "kernels": list(self.kernels),
            "axes": dict(self.axes),
            "sizes": self.sizes,
            "cores": self.cores,
            "others": self.others,
            "launch": self.launch,
            "recorded": self.recorded,
            "collective": self.collective,
            "in_turns": self.in_turns,
        }
        return Thread(self.machine, owner=owner, **{**kept, **changes})

    @property
    def device(self) -> Device:
        """The device that it is on."""
        return self.machine.device(self.owner.device)

    @property
    def kernel(self) -> str:
        """Name of the kernel it is inside of, or ""."""
        return self.kernels[-1] if self.kernels else ""

    @property
    def program(self) -> tuple[int, ...]:
        """The grid point it is at, or ()."""
        if not self.grids:
            return ()
        grid = self.grids[-1]
        return grid.point if grid.shown is None else grid.point[: grid.shown]

    @property
    def recording(self) -> Recording:
        """Where what it does is recorded."""
        return self.own_recording or self.machine.recording

    @property
    def core(self) -> tuple[tuple[str, int], ...]:
        """Which core of its device it is."""
        return tuple((axis, self.axes[axis]) for axis in self.cores)

    def finding(self, kind: FindingKind, message: str, line: str, **facts: Any) -> Finding:
        """Return a finding about the place where the thread is.

        Args:
          kind: what is wrong.
          message: one sentence, with the numbers.
          line: ``file:line``.
          facts: further fields of the finding.
        """
        where: dict[str, Any] = {"kernel": self.kernel, "program": self.program, "line": line}
        return Finding(kind=kind, message=message, **where, **facts)

    def report(self, kind: FindingKind, message: str, line: str, **facts: Any) -> Finding:
        """Keep a finding about the place where the thread is, and return it; see ``finding``."""
        finding = self.finding(kind, message, line, **facts)
        self.machine.report(finding)
        return finding

    def publish(self, ref: Ref, *site: Any, shared: bool = False) -> None:
        """Let other devices and cores reach an allocation.

        Args:
          ref: the memory.
          site: which allocation of the kernel it is.
          shared: whether the cores of the device share it.
        """
        self.publish_as(ref, AllocationKey(self.launch, () if shared else self.core, site))

    def publish_as(self, ref: Ref, key: AllocationKey) -> None:
        """Publish as ``publish`` does memory that may be another core's."""
        ref.key = key
        device = self.device
        if key not in device.memory:
            self.machine.recording.events.append(Entered(self.number, (device.number, key)))
        device.memory[key] = ref
        device.freed.discard(key)
        for act in device.expected.pop(key, ()):
            act(ref)

    def withdraw(self, refs: Sequence[Ref]) -> None:
        """End the life of allocations."""
        for ref in refs:
            if ref.key is not None:
                self.device.memory.pop(ref.key, None)
                self.device.freed.add(ref.key)

    def elsewhere(
        self, ref: Ref, places: Sequence[Elsewhere], operands: Sequence[Any], line: str
    ) -> Ref:
        """Return the memory of another device that corresponds to its own.

        Args:
          ref: its own memory.
          places: whose memory is meant.
          operands: of the equation.
          line: of the equation.

        Raises:
          SimulationError: this thread cannot reach such memory.
        """
        raise SimulationError(
            f"{ref.name or 'a reference'} of another device or block is accessed outside of a "
            "kernel for a GPU"
        )

    def deadlock(self, waits: Sequence[Wait], ended: Sequence[Thread] = ()) -> DeadlockError:
        """Report waits that never end, and give the error that ends the run.

        Args:
          waits: of all that wait; the first is its own.
          ended: threads that have ended, and could have signalled.
        """
        message = (
            "deadlock: every program and thread waits, and nothing is pending that could wake one"
            if self.machine.platform == "gpu"
            else "deadlock: every core is blocked and no signal or copy is pending"
        )
        if self.in_turns:
            message += (
                "; the TensorCores that the kernel is for are the same one here, which runs their "
                f"programs one after the other: {cores_of(self.machine.target)}"
            )
        ends = [Wait(owner=thread.owner, on="", line="the end of the program") for thread in ended]
        facts: dict[str, Any] = {"waits": (*waits, *ends), "seed": self.machine.seed}
        line, on = waits[0].line, waits[0].on
        return DeadlockError.of(self.report("deadlock", message, line, ref=on, **facts))

    @contextmanager
    def span(self, kind: SpanKind, name: str = "") -> Generator[TimelineSpan | None]:
        """Keep what it does in this context on the timeline; gives None if there is none.

        A span that an error leaves is not ended: the timeline shows it as unfinished.

        Args:
          kind: what it does.
          name: what a reader sees; "" for the program that it is at, or its kernel.
        """
        timeline = self.machine.timeline
        if timeline is None:
            yield None
            return
        name = name or (self.location if self.program else f"body of {self.location}")
        span = timeline.begin(self.owner, self.program, kind, name)
        yield span
        timeline.end(span)

    @contextmanager
    def inside(self, kernel: str, equation: Any, sizes: Sequence[int]) -> Generator[None]:
        """Evaluate the body of a kernel.

        Args:
          kernel: its name.
          equation: JAX's.
          sizes: of the grid that the body sees.
        """
        self.machine.coverage.enter(kernel, equation, sizes)
        timeline = self.machine.timeline
        span = timeline and timeline.begin(self.owner, self.program, "kernel", kernel)
        self.kernels.append(kernel)
        try:
            yield
        finally:
            self.kernels.pop()
            if timeline is not None and span is not None:
                timeline.end(span)

    @property
    def location(self) -> str:
        """Where it is: ``"program (1, 0) of softmax_kernel"``, or ""."""
        if not self.kernels:
            return ""
        if not self.grids or not self.grids[-1].sizes:
            return self.kernels[-1]
        point = ", ".join(map(str, self.program))
        return f"program ({point}) of {self.kernels[-1]}"
