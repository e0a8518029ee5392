"""Rules: semaphores of several devices, and those that all blocks of a launch share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import semaphore_kind
from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.allocation import memory_of
from pytest_pallas.simulator.gpu.operands import multicast_parts, signal_parts
from pytest_pallas.simulator.gpu.peers import devices_along
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.memory import Ref
from pytest_pallas.simulator.peers import Where, peer_of, reach
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.places import gpu_thread
from pytest_pallas.simulator.transfers import Semaphore, signal
from pytest_pallas.simulator.windows import read
from pytest_pallas.transforms import Place


@rule("semaphore_signal_parallel", threaded=True)
def _signal_parallel(eqn: Equation) -> Evaluate:
    parts, line = signal_parts(eqn.params, len(eqn.ins)), eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        for place, amount, peer in parts:
            where = peer_of(who, peer, operands)
            _signal(who, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


@rule("semaphore_signal_multicast", threaded=True)
def _signal_multicast(eqn: Equation) -> Evaluate:
    place, amount, axes = multicast_parts(eqn.params, len(eqn.ins))
    line = eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        for device in devices_along(who, axes):
            where = None if device == who.owner.device else Where(device, {})
            _signal(who, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


def _signal(
    thread: GpuThread,
    where: Where | None,
    place: Place,
    operands: Sequence[Any],
    amount: int,
    line: str,
) -> None:
    def act(ref: Ref) -> None:
        found: Any = read(ref.data, place.transforms, operands)
        semaphore = found if isinstance(found, Semaphore) else found.reshape(())[()]
        signal(thread, semaphore, amount, line)

    ref: Ref = operands[place.position]
    if where is None:
        act(ref)
    else:
        reach(thread, where, ref, line, act)


@rule("get_global", threaded=True)
def _get_global(eqn: Equation) -> Evaluate:
    """A semaphore that all blocks of a launch share."""
    site = ("global", id(eqn.origin or eqn))
    return lambda thread: gpu_thread(thread).kernel_launch.semaphores[site]


@rule("to_edtype", threaded=True)
def _to_semaphores(eqn: Equation) -> Evaluate:
    """``plgpu.alloc_semaphore``: semaphores that outlive the kernels that use them."""
    dtype = eqn.params["edtype"]
    if semaphore_kind(dtype) is None:
        raise SimulationError(f"the simulator does not know arrays of {dtype}")

    def evaluate(thread: Thread, counts: Any) -> Any:
        shape = np.shape(counts)
        found: Any = memory_of(thread.machine, shape, dtype, "a semaphore", "scratch")
        for point in np.ndindex(*shape):
            found[point].count = found[point].promised = int(counts[point])
            found[point].lasting = True
        return found

    return evaluate
