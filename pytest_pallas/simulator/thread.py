"""A core or device that evaluates a program: where it is, and what others can reach of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from pytest_pallas.findings import Finding, Owner
from pytest_pallas.findings import Kind as FindingKind
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Entered, Recording
from pytest_pallas.simulator.concurrency.transfers import Semaphore
from pytest_pallas.simulator.memory.references import AllocationKey, Ref, Region
from pytest_pallas.transforms import Elsewhere

if TYPE_CHECKING:
    from pytest_pallas.simulator.machine import Machine


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
    """

    number: int
    memory: dict[AllocationKey, Ref] = field(default_factory=dict)
    left: set[Any] = field(default_factory=set)
    freed: set[AllocationKey] = field(default_factory=set)
    launches: Counter[Any] = field(default_factory=Counter)
    barriers: dict[Any, Semaphore] = field(default_factory=dict)
    expected: dict[AllocationKey, list[Callable[[Ref], None]]] = field(default_factory=dict)
    ahead: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Thread:
    """One core that evaluates a program.

    Attributes:
      machine: the run it belongs to.
      grids: the grids it is inside of, the innermost last.
      kernels: the kernels it is inside of, by name, the innermost last.
      generators: the state of the core's own random number generator, once it is seeded.
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
    access_monitor: AccessMonitor | None = None
    own_recording: Recording | None = None

    #: Whether it runs on warps of a Mosaic GPU kernel: a ``GpuThread``.
    is_warpgroup: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Take a number, unless it has one."""
        if self.number < 0:
            owners = self.machine.owners
            self.number = owners.setdefault(self.owner, len(owners))

    def child(self, owner: Owner, **changes: Any) -> Thread:
        """A thread that goes on from here beside others."""
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

    def report(self, kind: FindingKind, message: str, line: str, **facts: Any) -> Finding:
        """Keep a finding about the place where the thread is.

        Args:
          kind: what is wrong.
          message: one sentence, with the numbers.
          line: ``file:line``.
          facts: further fields of the finding.

        Returns:
          The finding.
        """
        where: dict[str, Any] = {"kernel": self.kernel, "program": self.program, "line": line}
        finding = Finding(kind=kind, message=message, **where, **facts)
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
        """As ``publish``, of memory that may be another core's."""
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
        """The memory of another device that corresponds to its own.

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

    @contextmanager
    def inside(self, kernel: str) -> Generator[None]:
        """Evaluate the body of a kernel."""
        timeline = self.machine.timeline
        span = None if timeline is None else timeline.begin(self, "kernel", kernel)
        self.kernels.append(kernel)
        try:
            yield
        finally:
            self.kernels.pop()
            if timeline is not None and span is not None:
                timeline.end(self, span)

    @property
    def place(self) -> str:
        """Where it is: ``"program (1, 0) of softmax_kernel"``, or ""."""
        if not self.kernels:
            return ""
        if not self.grids or not self.grids[-1].sizes:
            return self.kernels[-1]
        point = ", ".join(map(str, self.program))
        return f"program ({point}) of {self.kernels[-1]}"
