"""The memory of other devices, and of all devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_pallas.compat.places import is_at_peer
from pytest_pallas.simulator.concurrency.peers import CoreAddress, peer_of
from pytest_pallas.simulator.concurrency.transfer_operands import names_a_device
from pytest_pallas.simulator.gpu.operands import signal_parts
from pytest_pallas.simulator.gpu.threads import GpuThread, memory_at
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.transforms import AtAll, AtPeer, Elsewhere, Operand


def memories_of(
    thread: GpuThread,
    ref: Ref,
    places: Sequence[Elsewhere],
    operands: Sequence[Any],
    line: str,
) -> Iterator[tuple[Ref, int]]:
    """The references that a name stands for, each with the device whose memory it is.

    Args:
      thread: who names it.
      ref: its own memory.
      places: whose memory is meant.
      operands: of the equation.
      line: of the equation.
    """
    here = thread.owner.device
    for place in places:
        if isinstance(place, AtPeer):
            where = peer_of(thread, place.peer, operands)
            if where is not None:
                yield at_device(thread, where.device, ref, line), where.device
                return
        elif isinstance(place, AtAll):
            for device in devices_along(thread, place.axes):
                yield at_device(thread, device, ref, line), device
            return
        else:
            yield thread.elsewhere(ref, places, operands, line), here
            return
    yield ref, here


def devices_along(thread: GpuThread, axes: Sequence[Any]) -> list[int]:
    """The numbers of the devices that differ from the thread's at most along some mesh axes."""
    sizes = thread.sizes
    ranges = [
        range(size) if name in axes else range(thread.axes[name], thread.axes[name] + 1)
        for name, size in sizes.items()
    ]
    numbers = np.arange(int(np.prod(list(sizes.values())))).reshape(tuple(sizes.values()))
    return [int(each) for each in numbers[np.ix_(*ranges)].ravel()]


def at_device(thread: GpuThread, device: int, ref: Ref, line: str) -> Ref:
    """The memory of any device that corresponds to the thread's own."""
    if device == thread.owner.device:
        return ref
    return memory_at(thread, CoreAddress(device, {}), ref, line)


def reaches_devices(eqn: Any) -> bool:
    """Whether an equation of JAX accesses the memory or the semaphores of other devices."""
    name, count = eqn.primitive.name, len(eqn.invars)
    if name in ("multimem_store", "multimem_load_reduce", "semaphore_signal_multicast"):
        return True
    if name == "semaphore_signal_parallel":
        return any(peer is not None for _, _, peer in signal_parts(eqn.params, count))
    if names_a_device(eqn):
        return True
    trees = [each for each in eqn.params.values() if hasattr(each, "num_leaves")]
    return any(_holds_peer(tree.unflatten([Operand(0)] * tree.num_leaves)) for tree in trees)


def _holds_peer(value: Any) -> bool:
    inner: Any = value if isinstance(value, tuple | list) else getattr(value, "transforms", None)
    return is_at_peer(value) if inner is None else any(map(_holds_peer, inner))
