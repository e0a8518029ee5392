"""Cluster launch control: clusters of a grid that have not begun are taken over by others.

A request cancels the launch of one cluster, whichever, and answers with its place in the grid, or
says that none is left (PTX ISA 9.0, 9.7.13.18 "clusterlaunchcontrol.try_cancel"). The answer goes
to all blocks of the cluster that sent the request, as JAX's lowering has it
(``.multicast::cluster::all``).

How many clusters a GPU begins at once, and which one a request gets, is not published. Here the
first half begins and the next one is taken, or with a seed any number and any one. Another one
begins when one ends, or when no thread can go on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from pytest_pallas.findings import Wait
from pytest_pallas.simulator.gpu.threads import Cluster, GpuLaunch, GpuThread

#: Bytes of an answer.
ANSWER = 16

#: What the first word of an answer is.
_TAKEN, _NONE_LEFT = 0x7A, 0x70

#: What a run says of itself that uses it.
NOTE = (
    "which clusters a GPU begins at first, and which one try_cluster_cancel takes over, is not "
    "published"
)


def hold_back(launch: GpuLaunch, clusters: Sequence[Cluster]) -> None:
    """Let some clusters begin at once, and the others later or never."""
    machine, count = launch.thread.machine, len(clusters)
    first = int(machine.random.integers(1, count + 1)) if machine.seed else -(-count // 2)
    launch.pending.extend(clusters[first:])


@contextmanager
def beginning_when_idle(launch: GpuLaunch) -> Generator[None]:
    """When no thread can go on, another cluster begins."""
    idle = launch.thread.machine.scheduler.idle
    begin = partial(begin_next, launch)
    idle.append(begin)
    try:
        yield
    finally:
        idle.remove(begin)


def may_begin(thread: GpuThread) -> bool:
    """Wait until the cluster of a thread begins; False if another one has taken it over."""
    cluster = thread.block.cluster
    launch, scheduler = cluster.launch, thread.machine.scheduler
    while cluster in launch.pending:
        task = scheduler.current
        assert task is not None
        launch.held.setdefault(id(cluster), []).append(task)
        scheduler.block(lambda: Wait(owner=thread.owner, on="the begin of its cluster"))
    return not cluster.cancelled


def begin_next(launch: GpuLaunch) -> bool:
    """Let the next cluster begin; False if there is none."""
    if not launch.pending:
        return False
    _release(launch, launch.pending.popleft())
    return True


def take_over(launch: GpuLaunch) -> Cluster | None:
    """A cluster that has not begun, and never will; None if there is none."""
    machine, pending = launch.thread.machine, launch.pending
    if not pending:
        return None
    at = int(machine.random.integers(len(pending))) if machine.seed else 0
    cluster = pending[at]
    del pending[at]
    cluster.cancelled = True
    _release(launch, cluster)
    return cluster


def _release(launch: GpuLaunch, cluster: Cluster) -> None:
    for task in launch.held.pop(id(cluster), ()):
        launch.thread.machine.scheduler.wake(task)


def answer_of(cluster: Cluster | None) -> np.ndarray[Any, Any]:
    """The bytes of an answer; the hardware's are not published."""
    words = np.zeros(ANSWER // 4, np.int32)
    if cluster is None:
        words[0] = _NONE_LEFT
    else:
        sizes = [size for _, size in cluster.launch.mesh.grid]
        words[0] = _TAKEN
        words[1] = np.ravel_multi_index(cluster.point, sizes) if sizes else 0
    return words.view(np.uint8)


def point_in(answer: np.ndarray[Any, Any], sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The place in the grid of the cluster that was taken over.

    Args:
      answer: 16 bytes; uninitialized memory counts as a request that failed.
      sizes: of the grid's axes.
    """
    words = np.ascontiguousarray(answer).view(np.uint8).reshape(-1).view(np.int32)
    if int(words[0]) != _TAKEN:
        return None
    return tuple(map(int, np.unravel_index(int(words[1]), sizes))) if sizes else ()
