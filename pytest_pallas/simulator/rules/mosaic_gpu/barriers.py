"""Rules: barriers in shared memory, and semaphores of blocks and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import semaphore_kind
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.peers import CoreAddress, peer_of, reach
from pytest_pallas.simulator.concurrency.transfers import Semaphore, signal
from pytest_pallas.simulator.gpu.barriers import Barrier, arrive, barrier_at, test, wait
from pytest_pallas.simulator.gpu.operands import barrier_parts, multicast_parts, signal_parts
from pytest_pallas.simulator.gpu.peers import devices_along
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.memory.allocation import memory_of
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.memory.windows import read
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, holds, part_of
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.transforms import RefPart


def named_barrier(thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str) -> Barrier:
    """The barrier that an equation names.

    Raises:
      BoundsError: there is none of that index.
    """
    _, part = part_of(thread, place, operands, "use of", line)
    return barrier_at(part)


def arrive_in_cluster(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Arrive at a barrier; at one of a cluster, in all blocks that take part."""
    axes = barrier.facts.axes
    if axes is None:
        arrive(thread, barrier, line)
        return
    cluster, here = thread.block.cluster, barrier.block
    blocks = [block for names in axes for block in cluster.along(here, names)]
    if barrier.facts.leader:
        blocks = blocks[:1]
    for block in dict.fromkeys(blocks or [here]):
        arrive(thread, block.memory[barrier.site].data[barrier.index], line)


@gpu_rule("barrier_arrive")
def _barrier_arrive(eqn: Equation) -> Evaluate:
    place, predicate = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(predicate, operands):
            arrive_in_cluster(thread, named_barrier(thread, place, operands, line), line)
        return ()

    return evaluate


@gpu_rule("barrier_wait")
def _barrier_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        wait(thread, named_barrier(thread, place, operands, line), line)
        return ()

    return evaluate


@gpu_rule("barrier_arrive_and_wait")
def _barrier_arrive_and_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        barrier = named_barrier(thread, place, operands, line)
        arrive_in_cluster(thread, barrier, line)
        wait(thread, barrier, line)
        return ()

    return evaluate


@gpu_rule("barrier_test")
def _barrier_test(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        return np.bool_(test(thread, named_barrier(thread, place, operands, line), line))

    return evaluate


@gpu_rule("semaphore_signal_parallel")
def _signal_parallel(eqn: Equation) -> Evaluate:
    parts, line = signal_parts(eqn.params, len(eqn.ins)), eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for place, amount, peer in parts:
            where = peer_of(thread, peer, operands)
            _signal(thread, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


@gpu_rule("semaphore_signal_multicast")
def _signal_multicast(eqn: Equation) -> Evaluate:
    place, amount, axes = multicast_parts(eqn.params, len(eqn.ins))
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            where = None if device == thread.owner.device else CoreAddress(device, {})
            _signal(thread, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


def _signal(
    thread: GpuThread,
    where: CoreAddress | None,
    place: RefPart,
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


@gpu_rule("get_global")
def _get_global(eqn: Equation) -> Evaluate:
    """A semaphore that all blocks of a launch share."""
    site = ("global", id(eqn.origin or eqn))
    return lambda thread: thread.kernel_launch.semaphores[site]


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
