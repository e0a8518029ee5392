"""The state of a Mosaic GPU kernel that runs: launches, clusters, blocks, warpgroups, barriers.

A launch has clusters, a cluster has blocks, a block has warpgroups, barriers and operations of its
engines. Other modules change this state: ``engines.py`` and ``barriers.py`` start operations and
wait for them, ``scopes.py`` gives memory to blocks, ``launch_order.py`` compares the accesses of
clusters and kernels to global memory, and ``mosaic_kernels.py`` runs a kernel. The functions at the
end lead from a thread to the memory of other blocks and devices.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pallas_sim.accesses import record_access
from pallas_sim.compat.compilers import CopyKey
from pallas_sim.compat.jaxprs import BarrierFacts
from pallas_sim.cores import BlockMesh, CoreAddress, peer_of, reach
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Wait
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Arena, Ref
from pallas_sim.recording import (
    END_OF_BLOCK,
    Acquired,
    Asynchronous,
    Recording,
    Released,
    Token,
    Touched,
)
from pallas_sim.scheduler import Task
from pallas_sim.transforms import AtBlock, AtPeer, Elsewhere, Operand


@dataclass(eq=False)
class GpuLaunch:
    """One launch of a kernel on a device.

    Attributes:
      thread: the device.
      mesh: the kernel's grid.
      operations: those that were started and are not done, in the order in which they were started.
      pending: clusters that have not begun, and that others may take over.
      held: the threads of these, by the identity of the cluster.
      semaphores: of allocations that all blocks share.
      start: the kernels ahead, if it may begin before they have ended.
      registers: that a thread has at least when it begins.
      lanes_apart: whether the lanes of a warpgroup do not wait for each other before one of them
        starts a copy: ``unsafe_no_auto_barriers``.
      approximates: whether functions are approximate: ``approx_math``.
      tiles: returns the tiles that JAX chooses for the shared memory of each copy, by ``key_of``
        its equation's parameters.
    """

    thread: Thread
    mesh: BlockMesh
    operations: list[EngineOperation] = field(default_factory=list)
    pending: deque[BlockCluster] = field(default_factory=deque)
    held: dict[int, list[Task]] = field(default_factory=dict)
    semaphores: dict[Any, Ref] = field(default_factory=dict)
    start: EarlyStart | None = None
    registers: int = 0
    lanes_apart: bool = False
    approximates: bool = False
    tiles: Callable[[], Mapping[CopyKey, tuple[int, ...]]] = dict

    @property
    def location(self) -> tuple[Any, ...]:
        """Device and launch: the same in each run."""
        return (self.thread.owner.device, self.thread.launch)


@dataclass(eq=False)
class BlockCluster:
    """Blocks that run at the same time, and reach each other's shared memory.

    Attributes:
      launch: it belongs to.
      point: its grid point.
      blocks: in the order of their ranks.
      cancelled: whether another cluster has taken it over before it began.
      together: whether its blocks wait for each other when they end, as they do to give tensor
        memory back that pairs of them share.
      end: passes on what they have done to the one that ends last.
    """

    launch: GpuLaunch
    point: tuple[int, ...]
    blocks: list[ThreadBlock] = field(default_factory=list)
    cancelled: bool = False
    together: bool = False
    end: Token = field(default_factory=Token)

    def block_at(self, block: ThreadBlock, indices: Mapping[Any, int]) -> ThreadBlock:
        """Return the block that differs from another one in these indices along axes.

        Raises:
          SimulationError: there is no such block.
        """
        rank = 0
        for (name, size), at in zip(self.launch.mesh.cluster, block.index, strict=True):
            index = indices.get(name, at)
            if not 0 <= index < size:
                raise SimulationError(
                    f"there is no block {index} along the axis {name!r} of the cluster, which has "
                    f"{size}"
                )
            rank = rank * size + index
        return self.blocks[rank]

    def along(self, block: ThreadBlock, axes: Sequence[Any]) -> list[ThreadBlock]:
        """Return the blocks that differ from one at most along some axes, in order."""
        sizes = {name: size for name, size in self.launch.mesh.cluster if name in axes}
        return [
            self.block_at(block, dict(zip(sizes, point, strict=True)))
            for point in np.ndindex(*sizes.values())
        ]


@dataclass(eq=False)
class ThreadBlock:
    """A block of threads.

    Attributes:
      cluster: it belongs to.
      index: along each axis of the cluster.
      arena: its shared memory, as bytes.
      memory: its allocations, by the site in the program that makes them.
      entered: how often a scope was entered, by the site of the scope and the thread.
      warpgroups: its threads.
      running: how many of them have not ended.
      end: passes on what they have done to the one that ends last.
      doors: one byte for each of its barriers. Other blocks access it when they arrive there, so
        that the monitor of order sees an arrival after the end of this block.
      barriers: its barriers.
      numbered: those of the hardware, by number.
      open: operations that it started and no thread knows to be done, by identity.
      tensor_core: of Blackwell.
      none_left: whether ``try_cluster_cancel`` has answered that no cluster is left: a request
        after that is an error.
      signalled: whether it has let the next kernel begin.
      registers: that each thread of a warpgroup has at most, by its number, once it has called
        ``set_max_registers``.
      asking: tasks that wait for registers of others.
    """

    cluster: BlockCluster
    index: tuple[int, ...]
    arena: Arena
    memory: dict[Any, Ref] = field(default_factory=dict)
    entered: dict[Any, int] = field(default_factory=dict)
    warpgroups: list[GpuThread] = field(default_factory=list)
    running: int = 0
    end: Token = field(default_factory=Token)
    doors: Array = field(default_factory=lambda: np.zeros(1024, np.uint8))
    barriers: list[Barrier] = field(default_factory=list)
    numbered: dict[int, Barrier] = field(default_factory=dict)
    open: dict[int, EngineOperation] = field(default_factory=dict)
    tensor_core: TensorCore = field(default_factory=lambda: TensorCore())
    none_left: bool = False
    signalled: bool = False
    registers: dict[int, int] = field(default_factory=dict)
    asking: list[Task] = field(default_factory=list)

    @property
    def point(self) -> tuple[int, ...]:
        """Its index along each axis of the grid and of the cluster."""
        return (*self.cluster.point, *self.index)

    @property
    def location(self) -> tuple[Any, ...]:
        """Device, launch and point: the same in each run."""
        return (*self.cluster.launch.location, self.point)


@dataclass(eq=False)
class OperationGroups:
    """Asynchronous operations of a thread that are waited for in the order in which they began.

    Attributes:
      open: those that belong to no group yet.
      closed: the groups, the oldest first.
    """

    open: list[EngineOperation] = field(default_factory=list)
    closed: list[list[EngineOperation]] = field(default_factory=list)

    def commit(self) -> None:
        """Make a group of those that belong to none."""
        self.closed.append(self.open)
        self.open = []

    def extend(self, other: OperationGroups) -> None:
        """Add those of another thread behind its own."""
        self.open += other.open
        self.closed += other.closed


@dataclass(eq=False)
class BarrierPhase:
    """One phase of a barrier.

    Attributes:
      token: passes on what the arriving threads have done.
      operations: that were completed with it.
    """

    token: Token
    operations: list[EngineOperation] = field(default_factory=list)


@dataclass(eq=False)
class Barrier:
    """A barrier of a block.

    Attributes:
      name: of the reference it belongs to, with its index.
      block: whose shared memory it is in.
      facts: what it is.
      arrivals: that complete a phase.
      number: among the barriers of the block.
      site: which allocation of the program it belongs to.
      index: in that allocation.
      pending: arrivals that the phase still needs.
      expected: bytes that were announced and are not there; negative if they came before.
      phases: the phase that is going on, after those that are complete.
      coming: operations that will arrive at it.
      waits: how often a warp waited for it, by warpgroup and warp.
      waiting: the tasks that wait for it.
      of_hardware: whether it is one of the 16 that a block has by number, and not in shared memory:
        it counts threads, and a wait does not end by parity.
      of_kernel: whether the kernel has arrived at it, and not only a pipeline of JAX's.
    """

    name: str
    block: ThreadBlock
    facts: BarrierFacts
    arrivals: int
    number: int
    site: tuple[Any, ...] = ()
    index: tuple[int, ...] = ()
    pending: int = 0
    expected: int = 0
    phases: list[BarrierPhase] = field(default_factory=list)
    coming: list[EngineOperation] = field(default_factory=list)
    waits: dict[tuple[int, int], int] = field(default_factory=dict)
    waiting: list[Task] = field(default_factory=list)
    of_hardware: bool = False
    of_kernel: bool = False

    def __post_init__(self) -> None:
        """Begin the first phase."""
        self._begin_phase(self._token())

    @property
    def location(self) -> tuple[Any, ...]:
        """Where it is: the same in each run."""
        return ("barrier", *self.block.location, self.number)

    @property
    def completed(self) -> int:
        """The number of complete phases."""
        return len(self.phases) - 1

    @property
    def count(self) -> int:
        """What a test looks at: it sees the same until another phase has ended."""
        return self.completed

    def wake(self, machine: Machine) -> None:
        """Let the tasks that wait look again."""
        for task in self.waiting:
            machine.scheduler.wake(task)
        self.waiting.clear()

    def end_phase_if_complete(self, machine: Machine, line: str = "") -> None:
        """Begin the next phase once all have arrived and all announced bytes are there."""
        at = (self.location, self.completed, (self.name, line))
        machine.choices.operate("arrive", *at)
        if not self.pending:
            machine.choices.operate("full", *at)
        if self.pending or self.expected:
            return
        machine.choices.operate("end", *at)
        # The tokens are chained, because an arrival in a phase also passes on earlier phases.
        after = self.phases[-1].token.after = self._token()
        self._begin_phase(after)
        self.wake(machine)

    def _token(self) -> Token:
        return Token(self.name, tensor_core=self.facts.tensor_core)

    def _begin_phase(self, token: Token) -> None:
        self.pending = self.arrivals
        self.phases.append(BarrierPhase(token))


#: A step of an operation. The first ones read its sources, the last one arrives at its barriers.
Step = Callable[[], None]


@dataclass(eq=False)
class EngineOperation:
    """An operation that was started.

    Attributes:
      record: the operation in the recording, for the monitor of order.
      block: that started it, or whose memory it writes.
      steps: what is left of it.
      reads: how many steps are left when its sources have been read.
      barriers: that wait for it.
      lasting: whether its writes may come after the end of its block.
      waited: whether a thread knows that it is done.
      released: whether a thread knows that its sources were read.
      before: other operations that are done when this one is.
      waiting: the tasks that wait for its steps.
      count: of its steps.
    """

    record: Asynchronous
    block: ThreadBlock
    steps: deque[Step] = field(default_factory=deque)
    reads: int = 0
    barriers: Sequence[Barrier] = ()
    lasting: bool = False
    waited: bool = False
    released: bool = False
    before: Sequence[EngineOperation] = ()
    waiting: list[Task] = field(default_factory=list)
    count: int = 0

    @property
    def line(self) -> str:
        """Where it was started."""
        return self.record.line

    @property
    def names(self) -> tuple[str, str]:
        """What it reads and what it writes, of each the first."""
        sides = self.record.sides
        read, written = (
            next((side.name for side in sides if side.writes == writes), "")
            for writes in (False, True)
        )
        return read, written


@dataclass(eq=False)
class WarpOperations:
    """What one warp has started on the tensor core of Blackwell.

    Attributes:
      number: of the tensor core as a thread of the recording, which knows what is done.
      unknown: products and copies of which no thread knows that they are done.
    """

    number: int
    unknown: list[EngineOperation] = field(default_factory=list)


#: Number of a warpgroup, and which of its warps.
Warps = tuple[int, tuple[int, ...]]


@dataclass(eq=False)
class TensorCore:
    """The tensor core of a block.

    Attributes:
      started: by each warp, by warpgroup and warp.
      loads: from tensor memory that were not waited for, with the warps that started them.
      stores: to tensor memory that were not committed, likewise.
    """

    started: dict[tuple[int, int], WarpOperations] = field(default_factory=dict)
    loads: list[tuple[Warps, Asynchronous]] = field(default_factory=list)
    stores: list[tuple[Warps, EngineOperation]] = field(default_factory=list)


@dataclass(eq=False)
class EarlyStart:
    """The begin of a kernel that need not wait for those ahead of it.

    Attributes:
      thread: the number of the thread that stands for these.
      token: that ``griddepcontrol_wait`` acquires.
      accesses: what they did to operands.
      joined: whether a block of the kernel waits before it lets the next kernel begin, so that this
        one cannot begin before those ahead have ended.
    """

    thread: int
    token: Token = field(default_factory=lambda: Token("griddepcontrol"))
    accesses: list[Touched] = field(default_factory=list)
    joined: bool = False

    def record(self, recording: Recording) -> None:
        """Begin a recording of threads that may run beside the kernels ahead."""
        recording.events += [replace(access, thread=self.thread) for access in self.accesses]
        recording.events.append(Released(self.thread, self.token))


@dataclass(eq=False, kw_only=True)
class GpuThread(Thread):
    """A warpgroup, or one of its warps.

    Attributes:
      block: it belongs to.
      warpgroup: its number in the block.
      lanes: the warps that it consists of: all four, or one.
      top: bytes of shared memory that the scopes around take.
      around: ``file:line`` of the innermost of them, for what JAX does itself in it.
      accumulators: registers of each thread that accumulators take.
      stores: its copies to global memory.
      loads: its ``cp.async`` copies.
      products: its ``wgmma`` operations.
      released: whether its last wait was one of JAX's, for arrivals of the kernel.
    """

    block: ThreadBlock
    warpgroup: int = 0
    lanes: tuple[int, ...] = (0, 1, 2, 3)
    top: int = 0
    around: str = ""
    accumulators: int = 0
    stores: OperationGroups = field(default_factory=OperationGroups)
    loads: OperationGroups = field(default_factory=OperationGroups)
    products: OperationGroups = field(default_factory=OperationGroups)
    released: bool = False

    is_warpgroup: ClassVar[bool] = True

    @property
    def kernel_launch(self) -> GpuLaunch:
        """The launch that it belongs to."""
        return self.block.cluster.launch

    @property
    def approximates(self) -> bool:
        """As of any thread."""
        return self.kernel_launch.approximates

    def elsewhere(
        self, ref: Ref, places: Sequence[Elsewhere], operands: Sequence[Any], line: str
    ) -> Ref:
        """Return the memory of another block or device that corresponds to its own."""
        for home in places:
            if isinstance(home, AtBlock):
                ref = self.of_block(ref, block_of(self, home, operands))
            elif isinstance(home, AtPeer):
                where = peer_of(self, home.peer, operands)
                ref = ref if where is None else memory_at(self, where, ref, line)
            else:
                raise SimulationError("only multimem operations access all devices at once")
        return ref

    def of_block(self, ref: Ref, block: ThreadBlock) -> Ref:
        """Return the shared memory of a block of the cluster that corresponds to its own.

        Raises:
          SimulationError: that block has not allocated it.
        """
        if block is self.block:
            return ref
        memory = None if ref.key is None else block.memory.get(ref.key.site)
        if memory is None:
            raise SimulationError(
                f"block {block.point} of the cluster has not allocated {ref.name or 'memory'}, "
                f"which block {self.block.point} accesses"
            )
        return memory


def memory_at(thread: Thread, where: CoreAddress, ref: Ref, line: str) -> Ref:
    """Return the memory of another device that corresponds to the thread's own.

    The thread waits for a device that has not entered the kernel. If the device has left it, this
    is reported, and the thread gets a copy of its own memory.
    """
    memories: list[Ref] = []
    scheduler = thread.machine.scheduler
    task = scheduler.current

    def entered(memory: Ref) -> None:
        memories.append(memory)
        if waiting and task is not None:
            scheduler.wake(task)

    # ``entered`` is called at once if the other device is there. Then no task has to be woken.
    waiting = False
    if not reach(thread, where, ref, line, entered, how="accesses"):
        return Ref(ref.data.copy(), ref.name, ref.space)
    waiting = not memories
    if waiting:
        scheduler.block(lambda: Wait(owner=thread.owner, on="the entry of its peer", line=line))
    return memories[0]


def block_of(thread: GpuThread, home: AtBlock, operands: Sequence[Any]) -> ThreadBlock:
    """Return the block of the cluster that a reference names."""
    cluster = thread.block.cluster
    sizes = dict(cluster.launch.mesh.cluster)
    indices: dict[Any, int] = {}
    for names, value in home.axes:
        index = int(operands[value.position]) if isinstance(value, Operand) else value
        if len(names) == 1:
            indices[names[0]] = index
            continue
        if not 0 <= index < math.prod(sizes[name] for name in names):
            raise SimulationError(f"there is no block {index} along the axes {names}")
        point = np.unravel_index(index, [sizes[name] for name in names])
        indices.update({name: int(at) for name, at in zip(names, point, strict=True)})
    return cluster.block_at(thread.block, indices)


def leave(thread: GpuThread) -> None:
    """End a warpgroup; with the last one, the shared memory of its block ends."""
    # The warpgroup that ends last knows what all others did, so their accesses come before the end.
    block = thread.block
    block.running -= 1
    thread.recording.events.append(Released(thread.number, block.end))
    if block.running:
        return
    thread.recording.events.append(Acquired(thread.number, block.end))
    cluster, ended = block.cluster, [block]
    if len(cluster.blocks) == 1:
        return
    if cluster.together:
        thread.recording.events.append(Released(thread.number, cluster.end))
        if any(other.running for other in cluster.blocks):
            return
        thread.recording.events.append(Acquired(thread.number, cluster.end))
        ended = cluster.blocks
    # The memory of a block ends with it. So the end is recorded as an access, and one of another
    # block that nothing orders before is reported.
    for ending in ended:
        for memory, name in ((ending.arena, "shared memory"), (ending.doors, "a barrier")):
            if memory.size:
                record_access(thread, memory, "free", name, END_OF_BLOCK)
