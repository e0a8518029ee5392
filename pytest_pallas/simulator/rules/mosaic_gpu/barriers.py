"""Rules: barriers in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.simulator.gpu.barriers import Barrier, arrive, barrier_at, test, wait
from pytest_pallas.simulator.gpu.operands import barrier_parts
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.places import gpu_thread, part_of
from pytest_pallas.transforms import Place


def named_barrier(thread: GpuThread, place: Place, operands: Sequence[Any], line: str) -> Barrier:
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


def _holds(predicate: int | None, operands: Sequence[Any]) -> bool:
    return predicate is None or bool(operands[predicate])


@rule("barrier_arrive", threaded=True)
def _barrier_arrive(eqn: Equation) -> Evaluate:
    place, predicate = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        if _holds(predicate, operands):
            arrive_in_cluster(who, named_barrier(who, place, operands, line), line)
        return ()

    return evaluate


@rule("barrier_wait", threaded=True)
def _barrier_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        wait(who, named_barrier(who, place, operands, line), line)
        return ()

    return evaluate


@rule("barrier_arrive_and_wait", threaded=True)
def _barrier_arrive_and_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        barrier = named_barrier(who, place, operands, line)
        arrive_in_cluster(who, barrier, line)
        wait(who, barrier, line)
        return ()

    return evaluate


@rule("barrier_test", threaded=True)
def _barrier_test(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        return np.bool_(test(who, named_barrier(who, place, operands, line), line))

    return evaluate
