"""What a simulated run has besides values: its target, limits, memory, findings and cores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pytest_pallas.accumulation import Accumulations
from pytest_pallas.devices.gpus import accumulations
from pytest_pallas.devices.targets import TARGETS
from pytest_pallas.findings import Finding, Owner
from pytest_pallas.sim_errors import SimulationLimitError
from pytest_pallas.simulator.concurrency.recording import Recording
from pytest_pallas.simulator.concurrency.scheduler import Scheduler, collecting_later
from pytest_pallas.simulator.concurrency.transfers import Copy, Semaphore
from pytest_pallas.simulator.inspection.inspector import Inspector
from pytest_pallas.simulator.inspection.timeline import Timeline
from pytest_pallas.simulator.monitors.ordering import disorder
from pytest_pallas.simulator.thread import Device

#: Gives what uninitialized memory of a dtype holds, or None for the default of that dtype.
#: The second argument is the kind of memory: ``"padding"``, ``"output"`` or ``"scratch"``.
Filler = Callable[[np.dtype[Any], str], Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may use.

    Attributes:
      steps: how many equations it may evaluate. A kernel that needs more is taken not to end.
      bytes: how much memory its arrays may take at a time.
      devices: the most devices of a mesh.
    """

    steps: int = 50_000_000
    bytes: int = 8 << 30
    devices: int = 4096


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
      steps: equations evaluated so far.
      fallbacks: how often JAX evaluated a primitive that has no rule, by name.
      arithmetic: ``"chip"`` or ``"float32"``, how products are added; "" for the chip's default.
      outputs: is called with each kernel's equation and outputs, or None.
      ahead: whether the next block of an operand is fetched while the body runs, as a chip does.
      separate: whether outputs that alias a pipelined input get memory of their own.
      copies: those that were started and are not done.
      devices: by number; see ``device``.
      owners: the numbers of the threads. Each core has one, whatever it runs.
      lasting: semaphores that outlive their kernel.
      shared: arrays that copies in flight access after their kernel, by identity.
      meetings: where threads wait for each other; see ``meeting.meet``.
      monitored: whether the recording is read for what is out of order.
      drops_indices: whether TMA copies lose the index of an axis of one tile, as on a chip.
      recording: what threads did to shared memory and semaphores.
      timeline: keeps what happened when, or None.
      shared_bytes: gives the bytes of shared memory that a compiler counts for a block of a kernel
        of the Triton route, by its equation, or None if it does not say; None where no compiler is.
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
    steps: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    arithmetic: str = ""
    outputs: Callable[[Any, list[Any]], None] | None = None
    ahead: bool = True
    separate: bool = False
    copies: list[Copy] = field(default_factory=list)
    devices: dict[int, Device] = field(default_factory=dict)
    owners: dict[Owner, int] = field(default_factory=dict)
    lasting: list[Semaphore] = field(default_factory=list)
    shared: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    meetings: dict[Any, Any] = field(default_factory=dict)
    monitored: bool = True
    drops_indices: bool = True
    recording: Recording = field(default_factory=Recording)
    timeline: Timeline | None = None
    inspector: Inspector | None = None
    shared_bytes: Callable[[Any], int | None] | None = None

    def __post_init__(self) -> None:
        """Count equation by equation where there is a timeline."""
        if self.timeline is not None and self.inspector is None:
            self.inspector = Inspector()

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
    def scheduler(self) -> Scheduler:
        """Decides which device or core goes on."""
        return Scheduler(self)

    def device(self, number: int) -> Device:
        """One of the devices."""
        found = self.devices.get(number)
        if found is None:
            found = self.devices[number] = Device(number)
        return found

    def find_disorder(self) -> None:
        """Let the monitor of order read the recording, and report what it finds."""
        self.find_disorder_in(self.recording)

    def find_disorder_in(self, recording: Recording) -> None:
        """As ``find_disorder``, of a recording of some threads, which ends with that."""
        events, recording.events = recording.events, []
        if not events or not self.monitored:
            return
        with collecting_later():
            found = disorder(events, list(self.owners), self.seed)
        for finding in found:
            self.report(finding)

    @cached_property
    def random(self) -> np.random.Generator:
        """Decides what may happen in any order."""
        return np.random.Generator(np.random.Philox(self.seed))

    def choose(self, among: Sequence[Copy]) -> Copy:
        """The copy that goes on: the first one in the plain order."""
        return among[int(self.random.integers(len(among)))] if self.seed else among[0]

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
        """Keep a finding, once for each place of the kernel and kind."""
        if all(each.key != finding.key for each in self.findings):
            self.findings.append(finding)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def uninitialized(self, shape: tuple[int, ...], dtype: Any, place: str) -> np.ndarray[Any, Any]:
        """Uninitialized memory.

        Args:
          shape: of the memory.
          dtype: of its elements.
          place: ``"padding"``, ``"output"`` or ``"scratch"``.
        """
        dtype = np.dtype(dtype)
        self.require(math.prod(shape) * dtype.itemsize, f"an array {dtype}{list(shape)}")
        value = None if self.fill is None else self.fill(dtype, place)
        return np.full(shape, default_fill(dtype) if value is None else value, dtype)


def default_fill(dtype: np.dtype[Any]) -> Any:
    """What uninitialized memory of a dtype holds: NaN, the lowest or largest integer, or True.

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
    """NaN, or the nearest thing that a dtype of ml_dtypes has: an extreme value, which is not 0."""
    import ml_dtypes

    try:
        info = ml_dtypes.finfo(dtype)
    except ValueError:
        limits = ml_dtypes.iinfo(dtype)
        return limits.min or limits.max
    nan = np.array(np.nan, np.float32).astype(dtype)
    return nan if np.isnan(nan.astype(np.float32)) else info.min
