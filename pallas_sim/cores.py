"""Launches: the meshes of cores that a kernel runs on, how they enter it, and how they leave it.

Then meetings, at which threads wait for each other, and the memory of peers: of other devices and
cores.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.chips import cores_of
from pallas_sim.compat.jaxprs import equations
from pallas_sim.compat.places import names_a_device
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.findings import Wait
from pallas_sim.machine import Thread
from pallas_sim.memory import AllocationKey, Ref
from pallas_sim.order.disorder import report_disorder
from pallas_sim.recording import Reach, ReachedDevice, Semaphore, Synchronized
from pallas_sim.scheduler import Task
from pallas_sim.sites import ENTRY, SyncSite
from pallas_sim.transforms import Peer


@dataclass(frozen=True, slots=True)
class CoreMesh:
    """A mesh of cores that a body of a kernel runs on.

    Attributes:
      kind: ``"tc"``, ``"sc_scalar_subcore"`` or ``"sc_vector_subcore"``.
      shape: sizes of its axes, by name.
    """

    kind: str
    shape: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many cores it has."""
        return math.prod(self.shape.values())

    @property
    def points(self) -> Sequence[Mapping[str, int]]:
        """The index of each core along each axis."""
        sizes = [range(size) for size in self.shape.values()]
        return [dict(zip(self.shape, point, strict=True)) for point in itertools.product(*sizes)]


def kind_of_cores(mesh: Any) -> str | None:
    """Return the kind of cores of a mesh of JAX, or None if they are none of a TPU."""
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas import tpu_sc as plsc

    kinds: Mapping[type, str] = {
        pltpu.TensorCoreMesh: "tc",
        plsc.ScalarSubcoreMesh: "sc_scalar_subcore",
        plsc.VectorSubcoreMesh: "sc_vector_subcore",
    }
    return kinds.get(type(mesh))


def core_meshes(meshes: Sequence[Any]) -> list[CoreMesh]:
    """Return the meshes of an ``mpmd_map``.

    Raises:
      MissingRuleError: one of them is of a kind that the simulator does not know.
    """
    cores: list[CoreMesh] = []
    for mesh in meshes:
        kind = kind_of_cores(mesh)
        if kind is None:
            raise MissingRuleError(f"the simulator does not simulate a {type(mesh).__name__}")
        cores.append(CoreMesh(kind, dict(mesh.shape)))
    return cores


#: What a kernel does besides loads and stores.
_ASYNCHRONOUS = frozenset(
    {
        *("dma_start", "dma_wait", "semaphore_signal", "semaphore_wait", "semaphore_read"),
        *("get_barrier_semaphore", "all_gather", "psum", "barrier"),
    }
)

#: Name of the axis of cores that JAX divides a parallel grid dimension over.
MEGACORE = "(core)"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a kernel does besides loads and stores.

    Attributes:
      asynchronous: whether it starts copies or uses semaphores.
      remote: whether it names another device.
      collective: names its barrier semaphore, for all kernels that share it; None without one.
      barrier: whether its devices wait for each other at the entry.
      lasting: whether its semaphores outlive it.
    """

    asynchronous: bool
    remote: bool
    collective: Any
    barrier: bool
    lasting: bool = False


#: The name of a barrier semaphore that each launch of a kernel has for itself.
OF_THE_LAUNCH = "of the launch"


def traffic_of(
    jaxprs: Sequence[Any], params: Any, meshes: Sequence[CoreMesh] = (), *, lasting: bool = False
) -> Traffic:
    """Find out what the programs of a kernel do.

    Args:
      jaxprs: of the kernel.
      params: its compiler parameters.
      meshes: of cores, that it runs on; none for one TensorCore.
      lasting: whether its semaphores outlive it.

    Raises:
      SimulationError: JAX or the TPU's compiler refuse how the kernel uses its barrier semaphore.
    """
    asynchronous = remote = False
    tags: list[Any] = []
    axes = {axis for mesh in meshes for axis in mesh.shape}
    for eqn in equations(*jaxprs):
        asynchronous |= eqn.primitive.name in _ASYNCHRONOUS
        remote |= names_a_device(eqn, axes)
        if eqn.primitive.name == "get_barrier_semaphore":
            tags.append(eqn.params.get("tag"))
    collective = _barrier_semaphore(jaxprs, params, tags)
    skips = getattr(params, "skip_device_barrier", False)
    kinds = {mesh.kind for mesh in meshes}
    if collective is not None and kinds and "tc" not in kinds and not remote:
        raise SimulationError(
            "the TPU's compiler refuses collective_id in a kernel of SparseCores that reaches no "
            "other device (Custom barrier requested for non-communicating custom call): leave it "
            "out"
        )
    if collective is not None and kinds == {"sc_vector_subcore"}:
        # libtpu has no barrier semaphores for them: devices meet, then each kernel has its own.
        if tags and skips:
            raise SimulationError(
                "the TPU's compiler refuses skip_device_barrier=True in a kernel of vector "
                "subcores that uses pltpu.get_barrier_semaphore() (The compiler failed to allocate "
                "a barrier semaphore): leave out one of them"
            )
        return Traffic(asynchronous, remote, OF_THE_LAUNCH, remote and not skips, lasting)
    return Traffic(
        asynchronous, remote, collective, remote and collective is None and not skips, lasting
    )


def _barrier_semaphore(jaxprs: Sequence[Any], params: Any, tags: Sequence[Any]) -> Any:
    """Return the name of a kernel's barrier semaphore, or None, as JAX's lowering chooses it.

    That is ``_lowered_to_custom_call_config`` of ``jax/_src/tpu_custom_call.py``.

    Args:
      jaxprs: of the kernel.
      params: its compiler parameters.
      tags: of each ``get_barrier_semaphore`` in the jaxprs.

    Raises:
      SimulationError: JAX refuses the parameters.
    """
    import jax

    number = getattr(params, "collective_id", None)
    named = list(dict.fromkeys(tag for tag in tags if tag is not None))
    mode = getattr(jax.config, "jax_pallas_auto_assign_collective_ids", "no")
    if len(named) > 1:
        raise SimulationError(
            f"JAX refuses a kernel with several barrier semaphores, of tags {_listed(named)}: the "
            "chip gives a kernel one; use one tag"
        )
    if number is not None and named and mode != "override":
        raise SimulationError(
            f"JAX refuses collective_id={number!r} beside get_barrier_semaphore({named[0]!r}): "
            "both choose the barrier semaphore; leave out one of them"
        )
    skips = getattr(params, "skip_device_barrier", False)
    name: Any = None if mode == "override" else number
    if name is not None and not isinstance(name, int):
        raise SimulationError(f"JAX refuses collective_id={name!r}: it must be an integer")
    if name is None and named:
        name = ("tag", named[0], skips)
    elif name is None and mode != "no":
        name = ("kernel", tuple(map(str, jaxprs)), skips)
    if tags and name is None:
        raise SimulationError(
            "JAX refuses pltpu.get_barrier_semaphore() in a kernel without "
            "pltpu.CompilerParams(collective_id=...), which chooses the barrier semaphore"
        )
    allowed = getattr(params, "allow_collective_id_without_custom_barrier", False)
    if name is not None and not tags and not allowed:
        shown = f"collective_id={number!r}" if number is not None else f"auto-assigned ids ({mode})"
        raise SimulationError(
            f"JAX refuses {shown} in a kernel that does not use its barrier semaphore: wait for "
            "the other devices with pltpu.get_barrier_semaphore(), or leave out collective_id, and "
            "all devices wait for each other at the entry. With "
            "allow_collective_id_without_custom_barrier=True JAX takes it, and they do not wait"
        )
    return name


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names))


@contextmanager
def launched(
    thread: Thread, kernel: Any, traffic: Traffic, *, several: bool = False
) -> Generator[None]:
    """Enter a kernel, and leave it at the end of the context.

    Args:
      thread: the device, or the core, that enters.
      kernel: which; the same on every device.
      traffic: what it does.
      several: whether it runs on several cores.
    """
    before = (thread.launch, thread.recorded, thread.collective)
    machine, device = thread.machine, thread.device
    concurrent = traffic.asynchronous or several or thread.recorded
    if concurrent:
        name = id(kernel)
        thread.launch = (name, device.launches[name])
        device.launches[name] += 1
        thread.recorded = True
        thread.collective = traffic.collective
    try:
        yield
    finally:
        if concurrent and not traffic.lasting:
            _leave(thread)
        thread.launch, thread.recorded, thread.collective = before
    alone = len(machine.owners) == 1 and not machine.copies and not machine.lasting
    if concurrent and not thread.recorded and alone:
        report_disorder(machine, machine.recording)


def _leave(thread: Thread) -> None:
    device, launch = thread.device, thread.launch
    device.left.add(launch)
    for key in [key for key in device.memory if key.launch == launch]:
        del device.memory[key]
    device.freed.clear()


def at_entry(thread: Thread, traffic: Traffic) -> None:
    """Wait for the other devices, where a chip does at the entry of such a kernel.

    The cores of a device enter together.
    """
    cores = thread.cores.get(MEGACORE, 1)
    if cores > 1:
        me, site = thread.axes[MEGACORE], ("cores", thread.owner.device, thread.launch)
        meet(thread, site, me, range(cores), None, "the entry of the kernel", kind="core")
    count = math.prod(thread.sizes.values())
    sites = thread.machine.sites
    if traffic.barrier and count > 1 and all(index == 0 for _, index in thread.core):
        if sites is not None and sites.enter(SyncSite(line=thread.kernel, what=ENTRY), ""):
            return
        # A TPU has one semaphore for it, so devices may even be in different kernels.
        me = thread.owner.device
        site = ("entry",) if thread.machine.platform == "tpu" else ("entry", thread.launch)
        meet(thread, site, me, range(count), None, "the entry of the kernel")


def run_divided(
    thread: Thread, divisions: Sequence[Any], work: Callable[[Thread, Any], None]
) -> None:
    """Run the parts of a kernel, each on a core of its own where there are several."""
    if len(divisions) == 1:
        work(thread, divisions[0])
        return
    cores = [
        thread.child(
            replace(thread.owner, core=number),
            cores={MEGACORE: len(divisions)},
            axes={**thread.axes, MEGACORE: number},
        )
        for number in range(len(divisions))
    ]
    run_concurrently(thread, cores, lambda core: work(core, divisions[core.axes[MEGACORE]]))


def run_on_chip(
    thread: Thread,
    meshes: Sequence[CoreMesh],
    cores: Sequence[Thread],
    work: Callable[[Thread], Any],
) -> None:
    """Run the cores of a kernel's meshes at the same time, as far as the chip has so many.

    A mesh of TensorCores is a parallel dimension of a grid: XLA divides it among the TensorCores of
    the chip, and each runs its part one after the other.
    """
    share = 1
    if [mesh.kind for mesh in meshes] == ["tc"]:
        share = -(-len(cores) // thread.machine.cores)
    parts = [cores[first : first + share] for first in range(0, len(cores), share)]
    first = {part[0].number: part for part in parts}

    def run_part(core: Thread) -> None:
        part = first[core.number]
        numbers = tuple(one.number for one in part)
        for one in part:
            one.in_turns = share > 1
            work(one)
            if share > 1:  # what comes next knows what it did
                thread.recording.events.append(Synchronized(numbers))

    run_concurrently(thread, [part[0] for part in parts], run_part)


def run_concurrently(
    thread: Thread, threads: Sequence[Thread], work: Callable[[Thread], Any]
) -> list[Any]:
    """Run threads at the same time, and go on when all have ended."""
    machine = thread.machine
    numbers = tuple(dict.fromkeys((thread.number, *(other.number for other in threads))))
    machine.recording.events.append(Synchronized(numbers))
    results = machine.scheduler.run(threads, work)
    machine.recording.events.append(Synchronized(numbers))
    return results


# Meetings: points that several threads must reach before any of them goes on.


@dataclass(eq=False)
class _Meeting:
    """A meeting that is not over.

    Attributes:
      brought: by each member.
      threads: the numbers of those that are there.
      waiting: their tasks.
    """

    brought: dict[Any, Any] = field(default_factory=dict)
    threads: list[int] = field(default_factory=list)
    waiting: list[Task] = field(default_factory=list)


def meet(
    thread: Thread,
    site: Hashable,
    member: Hashable,
    members: Sequence[Any],
    value: Any,
    what: str,
    kind: str = "device",
) -> dict[Any, Any]:
    """Wait until all members are at a place, and give what each of them brought.

    Args:
      thread: who arrives.
      site: names the meeting; it can be used again once all have left.
      member: which member the thread is.
      members: all of them.
      value: what it brings.
      what: the site in words, for deadlocks: ``"psum at FILE:LINE"``.
      kind: what a member is.

    Raises:
      DeadlockError: they never come.
    """
    if len(members) == 1:
        return {member: value}
    machine = thread.machine
    meeting = machine.meetings.setdefault(site, _Meeting())
    meeting.brought[member] = value
    meeting.threads.append(thread.number)

    def blocked() -> Wait:
        missing = [other for other in members if other not in meeting.brought]
        shown = ", ".join(map(str, missing[:4])) + (", ..." if len(missing) > 4 else "")
        return Wait(
            owner=thread.owner,
            on=f"{what} (not reached by {kind} {shown})",
            needed=len(members),
            had=len(meeting.brought),
            unit="arrivals",
            program=thread.program,
        )

    with thread.span("meeting", what):
        if len(meeting.brought) == len(members):
            thread.recording.events.append(Synchronized(tuple(meeting.threads)))
            for task in meeting.waiting:
                machine.scheduler.wake(task)
            del machine.meetings[site]
            machine.scheduler.stop()  # what it does next does not come before what the others do
        else:
            task = machine.scheduler.current
            assert task is not None
            meeting.waiting.append(task)
            while len(meeting.brought) < len(members):
                machine.scheduler.block(blocked)
    return meeting.brought


# Peers: the memory and semaphores of other devices and cores.


#: What orders devices at the entry of a kernel.
_REMEDIES = {
    "tpu": "let the devices wait for each other before, with pltpu.get_barrier_semaphore()",
    "gpu": "leave out plgpu.CompilerParams(skip_device_barrier=True)",
}


@dataclass(frozen=True, slots=True)
class CoreAddress:
    """Another device, or another core of this one.

    Attributes:
      device: its number.
      core: index along each axis of cores.
    """

    device: int
    core: Mapping[str, int]


def peer_of(thread: Thread, peer: Peer | None, operands: Sequence[Any]) -> CoreAddress | None:
    """Return the device and core that an operation names, or None if it is the thread's own.

    Args:
      thread: who names it.
      peer: how it is named, or None if it is not.
      operands: of the equation.

    Raises:
      SimulationError: there is no such device or core.
    """
    if peer is None:
        return None
    sizes = thread.sizes
    if peer.point and len(peer.point) == len(sizes) and not (thread.others or thread.cores):
        number = 0
        for at, (name, size) in zip(peer.point, sizes.items(), strict=True):
            index = int(operands[at])
            if not 0 <= index < size:
                raise _absent("device", index, name, size)
            number = number * size + index
        return None if number == thread.owner.device else _device(number)
    cores = {**thread.others, **thread.cores}
    point = {axis: thread.axes[axis] for axis in sizes}
    core = dict(thread.core)
    if peer.point is not None and peer.point:
        if len(peer.point) != len(sizes):
            raise SimulationError(
                f"device_id has {len(peer.point)} indices, and the mesh {len(sizes)} axes: "
                f"{sizes or 'the kernel is not inside of shard_map'}"
            )
        point = dict(zip(sizes, (int(operands[at]) for at in peer.point), strict=True))
    for names, at in peer.axes:
        index = int(operands[at])
        for name in reversed(names):
            size = sizes.get(name) or cores.get(name)
            if size is None:
                known = ", ".join(map(repr, (*sizes, *cores))) or "none"
                raise SimulationError(
                    f"device_id names the axis {name!r}; the axes of the mesh are {known}"
                )
            indices = point if name in sizes else core
            indices[name] = index % size if len(names) > 1 else index
            index //= size
    if peer.core is not None and thread.cores:
        core[next(iter(thread.cores))] = int(operands[peer.core])
    elif peer.core is not None and thread.machine.cores == 1 and int(operands[peer.core]):
        number, chip = int(operands[peer.core]), cores_of(thread.machine.target)
        raise SimulationError(f"there is no TensorCore {number}: {chip}")
    for name, index in (*point.items(), *core.items()):
        size = sizes.get(name) or cores[name]
        if not 0 <= index < size:
            kind = "device" if name in sizes else "core"
            raise _absent(kind, index, name, size)
    number = 0
    for name, size in sizes.items():
        number = number * size + point[name]
    if peer.number is not None:
        number = int(operands[peer.number])
        count = math.prod(sizes.values())
        if not 0 <= number < count:
            raise SimulationError(f"there is no device {number}: the mesh has {count}")
    if number == thread.owner.device and core == dict(thread.core):
        return None
    return CoreAddress(number, core)


def _absent(kind: str, index: int, name: str, size: int) -> SimulationError:
    return SimulationError(f"there is no {kind} {index} along the axis {name!r}, which has {size}")


@functools.cache
def _device(number: int) -> CoreAddress:
    """Return a device whose cores no kernel divides its work among."""
    return CoreAddress(number, {})


def barrier_of(thread: Thread, device: int, name: Any) -> Ref:
    """Return a device's barrier semaphore, which lives as long as the program."""
    barriers = thread.machine.device(device).barriers
    if name not in barriers:
        label = f"the barrier semaphore of device {device}"
        barriers[name] = Semaphore(label, "barrier", lasting=True)
    memory = np.empty((), object)
    memory[()] = barriers[name]
    return Ref(
        memory, "the barrier semaphore", "semaphore", key=AllocationKey((), (), ("barrier", name))
    )


def reach(
    thread: Thread,
    where: CoreAddress,
    ref: Ref,
    line: str,
    act: Callable[[Ref], None],
    *,
    how: Reach = "signals",
) -> bool:
    """Do something with the memory of a peer that corresponds to the thread's own.

    Where the peer has not allocated it yet, that happens as soon as it does; the monitor of order
    reports it, whatever the order was.

    Args:
      thread: who reaches.
      where: the peer.
      ref: the thread's own memory or semaphore.
      line: of the operation.
      act: takes the peer's.
      how: what is done there, for findings.

    Returns:
      False where that memory has ended, which is reported.

    Raises:
      SimulationError: other devices cannot have that memory.
    """
    key = ref.key
    if key is None:
        raise SimulationError(
            f"{ref.name or 'a reference'} cannot be reached by other devices or cores"
        )
    machine, device = thread.machine, thread.machine.device(where.device)
    if key.site and key.site[0] == "barrier":
        act(barrier_of(thread, where.device, key.site[1]))
        return True
    if key.core:
        key = key._replace(core=tuple((axis, where.core.get(axis, at)) for axis, at in key.core))
    memory = device.memory.get(key)
    at = (line, thread.program, thread.kernel, _REMEDIES[machine.platform])
    event = ReachedDevice(thread.number, (where.device, key), ref.name, how, *at)
    # What a line of a thread has reached it reaches again: only the first time can be too early,
    # unless that is left out.
    again = memory is not None and (thread.number, line) in memory.reached
    if not again or machine.sites is not None:
        machine.recording.events.append(event)
        if memory is not None:
            memory.reached.add((thread.number, line))
    if memory is not None:
        act(memory)
    elif key.launch in device.left or key in device.freed:
        message = (
            f"{thread.owner} {how} {ref.name} of device {where.device}, which has left the kernel "
            "without waiting for that"
        )
        accesses = (event.access(thread.owner),)
        thread.report("entry", message, line, ref=ref.name, accesses=accesses, seed=machine.seed)
        return False
    else:
        device.expected.setdefault(key, []).append(act)
    return True


@dataclass(frozen=True, slots=True)
class BlockMesh:
    """The grid of a Mosaic GPU kernel.

    Attributes:
      grid: names and sizes of its axes: of clusters, where a kernel has them.
      cluster: names and sizes of the axes of a cluster of blocks.
      threads: name and number of the warpgroups of a block, or None for one that has no name.
    """

    grid: tuple[tuple[Any, int], ...]
    cluster: tuple[tuple[Any, int], ...]
    threads: tuple[Any, int] | None

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return math.prod(size for _, size in self.cluster)

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a block."""
        return 1 if self.threads is None else self.threads[1]


def block_mesh(meshes: Sequence[Any]) -> BlockMesh | None:
    """Return the grid that a ``mpmd_map`` runs on, or None where that is no GPU's."""
    mesh = meshes[0]
    if not _is_of_plgpu(mesh, "Mesh"):
        return None
    return BlockMesh(
        tuple(zip(mesh.grid_names, mesh.grid, strict=True)),
        tuple(zip(mesh.cluster_names, mesh.cluster, strict=True)),
        None if mesh.num_threads is None else (mesh.thread_name, mesh.num_threads),
    )


def warp_axis(meshes: Sequence[Any]) -> tuple[Any, int] | None:
    """Name and size of the axis of warps that a ``mpmd_map`` divides a warpgroup into, or None."""
    mesh = meshes[0]
    if not _is_of_plgpu(mesh, "WarpMesh"):
        return None
    ((name, size),) = mesh.shape.items()
    return name, size


def _is_of_plgpu(mesh: Any, name: str) -> bool:
    """Return whether a mesh is of this class of ``plgpu``. A TPU's meshes do not import it."""
    if kind_of_cores(mesh) is not None:
        return False
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return isinstance(mesh, getattr(plgpu, name))
