"""Private names of JAX: the barriers that threads of the GPU interpreter wait at, told to a watch.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_pallas.findings import Owner


@dataclass(frozen=True)
class BarrierWait:
    """A wait at a barrier.

    Attributes:
      thread: who waits: ``(device, block of the cluster, warpgroup, warp)``; the warp is None if
        the whole warpgroup waits.
      place: ``file:line (function)`` of the kernel, or "".
      barrier: the interpreter's own object.
    """

    thread: tuple[int, int, int, int | None]
    place: str
    barrier: Any

    @property
    def owner(self) -> Owner:
        """Who waits."""
        return owner_of(self.thread)

    @property
    def arrivals(self) -> tuple[int, int]:
        """How many have arrived of those that must."""
        return self.barrier.arrivals_count, self.barrier.num_arrivals

    @property
    def is_over(self) -> bool:
        """Whether the barrier let the thread go in the meantime."""
        thread = self._known
        return thread is not None and thread != self.barrier.phase

    @property
    def _known(self) -> int | None:
        phases = self.barrier.last_observed_phase_by_thread
        for thread, phase in phases.items():
            if thread_key(thread) == self.thread:
                return phase
        return 0  # it never waited here before


class ThreadWatch(Protocol):
    """Who is told. Called by several threads at once."""

    def waits(self, wait: BarrierWait) -> None:
        """A thread is about to wait."""
        ...

    def goes_on(self, wait: BarrierWait) -> None:
        """It does not wait any more."""
        ...

    def ends(self, thread: tuple[int, int, int, int | None], threads: int) -> None:
        """A warpgroup is through with the kernel, one of ``threads``."""
        ...

    def begins(self, threads: int) -> None:
        """A cluster begins, with so many warpgroups."""
        ...


def thread_key(thread: Any) -> tuple[int, int, int, int | None]:
    """Device, block of the cluster, warpgroup and warp; the warp is None of a whole warpgroup."""
    warp = getattr(thread, "warp_id", None)
    return (
        int(thread.device_id),
        int(thread.block_id),
        int(thread.warpgroup_id),
        None if warp is None else int(warp),
    )


def owner_of(key: tuple[int, int, int, int | None]) -> Owner:
    """The thread with a key: ``device 0, block 0, warpgroup 1``."""
    device, block, group, warp = key
    name = f"block {block}, warpgroup {group}" + ("" if warp is None else f", warp {warp}")
    return Owner(device=device, thread=name)


def _warpgroups(memory: Any) -> int:
    return sum(not hasattr(thread, "warp_id") for thread in memory.all_concurrent_threads)


@contextmanager
def watched_threads(watch: ThreadWatch) -> Generator[None]:
    """Tell ``watch`` who waits in the GPU interpreter."""
    module: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.shared_memory")
    info: Any = importlib.import_module("jax._src.source_info_util")
    wait = module.Barrier.wait
    finished = module.GPUSharedMemory.kernel_thread_finished
    reset = module.GPUSharedMemory.reset_per_cluster_state

    def waits(self: Any, thread: Any, logging_info: Any = None) -> None:
        source = getattr(logging_info, "source_info", None)
        told = BarrierWait(thread_key(thread), info.summarize(source) if source else "", self)
        watch.waits(told)
        wait(self, thread, logging_info)
        watch.goes_on(told)

    def ends(self: Any, thread: Any) -> None:
        finished(self, thread)
        watch.ends(thread_key(thread), _warpgroups(self))

    def begins(self: Any) -> None:
        reset(self)
        watch.begins(_warpgroups(self))

    with ExitStack() as stack:
        for owner, name, value in (
            (module.Barrier, "wait", waits),
            (module.GPUSharedMemory, "kernel_thread_finished", ends),
            (module.GPUSharedMemory, "reset_per_cluster_state", begins),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
