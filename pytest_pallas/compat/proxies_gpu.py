"""Private names of JAX: what the tensor core of a Hopper GPU sees of shared memory.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_PACKAGE = "jax._src.pallas.mosaic_gpu.interpret"


@contextmanager
def wgmma_reads_checked() -> Generator[None]:
    """Let the GPU interpreter report a race where wgmma reads what nobody has made visible to it.

    It reads shared memory by the async proxy (PTX ISA, "Async proxy"), which sees what threads have
    written only after ``plgpu.commit_smem``. JAX asks so about copies and ``tcgen05`` products, but
    not about wgmma.
    """
    callbacks: Any = importlib.import_module(f"{_PACKAGE}.gpu_callbacks")
    wgmma = callbacks.wgmma
    callbacks.wgmma = _checked(wgmma, callbacks)
    try:
        yield
    finally:
        callbacks.wgmma = wgmma


def _checked(wgmma: Callable[..., Any], callbacks: Any) -> Callable[..., Any]:
    memory: Any = importlib.import_module(f"{_PACKAGE}.shared_memory")
    core: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    in_shared = memory.IDX_BY_GPU_MEMORY_SPACE[core.MemorySpace.SMEM]

    # What raises must tell the other threads. Not around wgmma, which does so itself: JAX waits for
    # every failure once.
    @callbacks.fail_on_exception
    def check(*, token: Any, thread: Any, source_info: Any = None, **rest: Any) -> None:
        import jax

        del token
        shared = callbacks._get_shared_memory()
        if not shared.detect_races:
            return
        # As for copies: read by somebody else, who knows what this thread knows so far. Products
        # are synchronous here, so the thread knows at once that it is done.
        clock = shared.get_clock(thread)
        clock.inc(shared.get_next_tma_thread_id())
        for name in ("a", "b"):
            key = memory.HostAllocationKey.from_array(rest[f"{name}_allocation_key_as_array"])
            if key.memory_space_id != in_shared:
                continue
            transforms = callbacks._remove_noop_transforms(rest[f"{name}_transforms"])
            access = shared.access(key, jax.tree.map(int, transforms))
            seen = clock.async_smem_clock
            callbacks.get_races().check_read(thread, seen, key, access, source_info=source_info)
        with shared.lock:
            shared.clocks[thread].update(clock)

    @functools.wraps(wgmma)
    def checked(**arguments: Any) -> Any:
        check(**arguments)
        return wgmma(**arguments)

    return checked
