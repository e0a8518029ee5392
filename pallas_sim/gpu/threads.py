"""Who runs on a GPU: a launch of a kernel, its clusters and blocks, and their warpgroups."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pallas_sim.accesses import record_access
from pallas_sim.compat.compilers import CopyKey
from pallas_sim.cores import BlockMesh, CoreAddress, peer_of, reach
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Wait
from pallas_sim.machine import Thread
from pallas_sim.memory import AllocationKey, Ref
from pallas_sim.recording import END_OF_BLOCK, Acquired, Released, Token
from pallas_sim.transforms import AtBlock, AtPeer, Elsewhere, Operand

if TYPE_CHECKING:
    from pallas_sim.gpu.barriers import Barrier, EngineOperation
    from pallas_sim.gpu.launch_order import EarlyStart
    from pallas_sim.scheduler import Task


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
      start: what is ahead of it, if it may begin before that has ended.
      registers: that a thread has at least when it begins.
      lanes_apart: whether the lanes of a warpgroup do not wait for each other before one of them
        starts a copy: ``unsafe_no_auto_barriers``.
      tiles: gives the tiles that JAX chooses for the shared memory of each copy, by ``key_of`` its
        equation's parameters.
    """

    thread: Thread
    mesh: BlockMesh
    operations: list[EngineOperation] = field(default_factory=list)
    pending: deque[Cluster] = field(default_factory=deque)
    held: dict[int, list[Task]] = field(default_factory=dict)
    semaphores: dict[Any, Ref] = field(default_factory=dict)
    start: EarlyStart | None = None
    registers: int = 0
    lanes_apart: bool = False
    tiles: Callable[[], Mapping[CopyKey, tuple[int, ...]]] = dict


@dataclass(eq=False)
class Cluster:
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
        """The block that differs from another one in these indices along the cluster's axes.

        Raises:
          SimulationError: there is no such block.
        """
        rank = 0
        for (name, size), at in zip(self.launch.mesh.cluster, block.place, strict=True):
            index = indices.get(name, at)
            if not 0 <= index < size:
                raise SimulationError(
                    f"there is no block {index} along the axis {name!r} of the cluster, which has "
                    f"{size}"
                )
            rank = rank * size + index
        return self.blocks[rank]

    def along(self, block: ThreadBlock, axes: Sequence[Any]) -> list[ThreadBlock]:
        """The blocks that differ from one at most along some axes of the cluster, in order."""
        names = [name for name, _ in self.launch.mesh.cluster]
        known = [name for name in axes if name in names]
        sizes = [size for name, size in self.launch.mesh.cluster if name in known]
        known = [name for name in names if name in known]
        return [
            self.block_at(block, dict(zip(known, point, strict=True)))
            for point in np.ndindex(*sizes)
        ]


@dataclass(eq=False)
class ThreadBlock:
    """A block of threads.

    Attributes:
      cluster: it belongs to.
      place: its index along each axis of the cluster.
      arena: its shared memory, as bytes.
      memory: its allocations, by the place in the program that makes them.
      entered: how often a scope was entered, by the place of the scope and the thread.
      warpgroups: its threads.
      running: how many of them have not ended.
      end: passes on what they have done to the one that ends last.
      doors: one byte for each of its barriers, which other blocks touch when they arrive there.
      barriers: its barriers.
      open: operations that it started and no thread knows to be done, by identity.
      engines: the state of units that it uses, and what it knows of them, by kind.
      signalled: whether it has let the next kernel begin.
      registers: that each thread of a warpgroup has at most, by its number, once it has called
        ``set_max_registers``.
      asking: the tasks that wait for registers of others.
    """

    cluster: Cluster
    place: tuple[int, ...]
    arena: Array
    memory: dict[Any, Ref] = field(default_factory=dict)
    entered: dict[Any, int] = field(default_factory=dict)
    warpgroups: list[GpuThread] = field(default_factory=list)
    running: int = 0
    end: Token = field(default_factory=Token)
    doors: Array = field(default_factory=lambda: np.zeros(1024, np.uint8))
    barriers: list[Barrier] = field(default_factory=list)
    open: dict[int, EngineOperation] = field(default_factory=dict)
    engines: dict[Any, Any] = field(default_factory=dict)
    signalled: bool = False
    registers: dict[int, int] = field(default_factory=dict)
    asking: list[Task] = field(default_factory=list)

    @property
    def point(self) -> tuple[int, ...]:
        """Its index along each axis of the grid and of the cluster."""
        return (*self.cluster.point, *self.place)


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
      chained: its other operations that something waits for later, by kind (``"tcgen05"``).
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
    chained: dict[str, list[EngineOperation]] = field(default_factory=dict)

    is_warpgroup: ClassVar[bool] = True

    @property
    def kernel_launch(self) -> GpuLaunch:
        """The launch that it belongs to."""
        return self.block.cluster.launch

    def elsewhere(
        self, ref: Ref, places: Sequence[Elsewhere], operands: Sequence[Any], line: str
    ) -> Ref:
        """The memory of another block, or of another device, that corresponds to its own."""
        for place in places:
            if isinstance(place, AtBlock):
                ref = self.of_block(ref, block_of(self, place, operands))
            elif isinstance(place, AtPeer):
                where = peer_of(self, place.peer, operands)
                ref = ref if where is None else memory_at(self, where, ref, line)
            else:
                raise SimulationError("only multimem operations access all devices at once")
        return ref

    def of_block(self, ref: Ref, block: ThreadBlock) -> Ref:
        """The shared memory of a block of the cluster that corresponds to its own.

        Raises:
          SimulationError: that block has not allocated it.
        """
        if block is self.block:
            return ref
        found = None if ref.key is None else block.memory.get(ref.key.site)
        if found is None:
            raise SimulationError(
                f"block {block.point} of the cluster has not allocated {ref.name or 'memory'}, "
                f"which block {self.block.point} accesses"
            )
        return found


def memory_at(thread: Thread, where: CoreAddress, ref: Ref, line: str) -> Ref:
    """The memory of another device that corresponds to the thread's own.

    The thread waits for a device that has not entered the kernel. If the device has left it, this
    is reported, and the thread gets a copy of its own memory.
    """
    found: list[Ref] = []
    scheduler = thread.machine.scheduler
    task = scheduler.current

    def entered(memory: Ref) -> None:
        found.append(memory)
        if waiting and task is not None:
            scheduler.wake(task)

    waiting = False
    if not reach(thread, where, ref, line, entered, how="accesses"):
        return Ref(ref.data.copy(), ref.name, ref.space)
    waiting = not found
    if waiting:
        scheduler.block(lambda: Wait(owner=thread.owner, on="the entry of its peer", line=line))
    return found[0]


def block_of(thread: GpuThread, place: AtBlock, operands: Sequence[Any]) -> ThreadBlock:
    """The block of the cluster that a reference names."""
    cluster = thread.block.cluster
    sizes = dict(cluster.launch.mesh.cluster)
    indices: dict[Any, int] = {}
    for names, given in place.axes:
        index = int(operands[given.position]) if isinstance(given, Operand) else given
        if len(names) == 1:
            indices[names[0]] = index
            continue
        if not 0 <= index < math.prod(sizes[name] for name in names):
            raise SimulationError(f"there is no block {index} along the axes {names}")
        point = np.unravel_index(index, [sizes[name] for name in names])
        indices.update({name: int(at) for name, at in zip(names, point, strict=True)})
    return cluster.block_at(thread.block, indices)


def key_of(site: tuple[Any, ...]) -> AllocationKey:
    """Names shared memory alike in all blocks."""
    return AllocationKey((), (), site)


def leave(thread: GpuThread) -> None:
    """End a warpgroup; with the last one, the shared memory of its block ends."""
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
        if any(each.running for each in cluster.blocks):
            return
        thread.recording.events.append(Acquired(thread.number, cluster.end))
        ended = cluster.blocks
    for each in ended:
        for memory, name in ((each.arena, "shared memory"), (each.doors, "a barrier")):
            if memory.size:
                record_access(thread, memory, "free", name, END_OF_BLOCK)
