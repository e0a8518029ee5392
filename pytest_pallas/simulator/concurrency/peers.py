"""Peers: the memory and semaphores of other devices and cores."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.findings import Access
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Reach, Reached
from pytest_pallas.simulator.concurrency.transfers import Semaphore
from pytest_pallas.simulator.memory.references import AllocationKey, Ref
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.transforms import Peer

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
    """The device and core that an operation names, or None if it is the thread's own.

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
            place = point if name in sizes else core
            place[name] = index % size if len(names) > 1 else index
            index //= size
    if peer.core is not None and thread.cores:
        core[next(iter(thread.cores))] = int(operands[peer.core])
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
    """A device whose cores no kernel divides its work among."""
    return CoreAddress(number, {})


def barrier_of(thread: Thread, device: int, name: Any) -> Ref:
    """A device's barrier semaphore, which lives as long as the program."""
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
    found = device.memory.get(key)
    # What a line of a thread has reached it reaches again: only the first time can be too early.
    if found is None or (thread.number, line) not in found.reached:
        at = (line, thread.program, thread.kernel, _REMEDIES[machine.platform])
        event = Reached(thread.number, (where.device, key), ref.name, how, *at)
        machine.recording.events.append(event)
        if found is not None:
            found.reached.add((thread.number, line))
    if found is not None:
        act(found)
    elif key.launch in device.left or key in device.freed:
        _report_too_late(thread, where, ref, line, how)
        return False
    else:
        device.expected.setdefault(key, []).append(act)
    return True


def _report_too_late(thread: Thread, where: CoreAddress, ref: Ref, line: str, how: Reach) -> None:
    access = Access(
        kind="write",
        ref=ref.name,
        owner=thread.owner,
        home=where.device,
        line=line,
        program=thread.program,
        copy=how == "copies to",
    )
    message = (
        f"{thread.owner} {how} {ref.name} of device {where.device}, which has left the kernel "
        "without waiting for that"
    )
    seed = thread.machine.seed
    thread.report("entry", message, line, ref=ref.name, accesses=(access,), seed=seed)
