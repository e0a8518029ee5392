"""Private names of JAX: mistakes with barriers that its GPU interpreter says nothing of.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

_PACKAGE = "jax._src.pallas.mosaic_gpu.interpret"
#: Where barriers outside of their arrays are named. A key is all that reaches the simulated
#: device, and a staged program may be run again later.
_places: list[str] = []


@contextmanager
def barriers_checked() -> Generator[None]:
    """Let the GPU interpreter raise for barriers that do not exist, and copies not waited for.

    A kernel raises, inside:

    - IndexError for a barrier outside of its array. JAX takes the last of them, or counts from the
      end.
    - ValueError if a block ends while one of its copies from GMEM to SMEM is under way. On the
      hardware the memory may be another block's by the time that the copy writes it.
    - ValueError if a thread arrives at a barrier of another block of its cluster, and no thread of
      that block knows of it at its end: the block may have ended before, and its barriers with it
      (CUDA C++ Programming Guide, "Distributed Shared Memory"). Only where races are looked for.
    """
    interpreter: Any = importlib.import_module(f"{_PACKAGE}.jaxpr_interpret")
    callbacks: Any = importlib.import_module(f"{_PACKAGE}.gpu_callbacks")
    memory: Any = importlib.import_module(f"{_PACKAGE}.shared_memory")
    with ExitStack() as stack:
        for owner, name, wrap in (
            (interpreter, "_get_barrier_allocation_key_from_inval", _bounded),
            (memory.HostAllocationRequest, "from_array", _existing),
            (callbacks.AsyncCopyGmemToSmemTask, "post_write", _noted),
            (memory.ClusterBarrier, "arrive", functools.partial(_arrived, callbacks)),
            (memory.GPUSharedMemory, "reset_per_cluster_state", _settled),
        ):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, wrap(vars(owner)[name]))
        yield


def _bounded(select: Callable[..., Any]) -> Callable[..., Any]:
    """The key of a barrier; of one that does not exist, what is wrong with it, negated."""

    @functools.wraps(select)
    def selected(keys: Any, treedef: Any, leaves: Any) -> Any:
        import jax
        from jax import numpy as jnp

        key = select(keys, treedef, leaves)
        transforms = () if treedef is None else jax.tree.unflatten(treedef, leaves)
        indices = [i for transform in transforms for i in transform.indices]
        for axis, index in enumerate(indices):
            start, size = getattr(index, "start", index), keys.shape[axis]
            outside = jnp.logical_or(start < 0, start >= size)
            wrong = jnp.asarray([_place(), axis, start, size], key.dtype)
            # Minus one, since keys are zero and more.
            named = jnp.zeros_like(key).at[0].set(-1).at[1:5].set(wrong)
            key = jnp.where(jnp.logical_and(outside, key[0] >= 0), named, key)
        return key

    return selected


def _place() -> int:
    """The number of the line that is staged."""
    info: Any = importlib.import_module("jax._src.source_info_util")
    place = info.summarize(info.current())
    if place not in _places:
        _places.append(place)
    return _places.index(place)


def _existing(from_array: Any) -> Any:
    @functools.wraps(from_array.__func__)
    def key(cls: Any, request: Any) -> Any:
        mark, place, axis, index, size, *_ = (int(number) for number in request)
        if mark < 0:
            along = f" along axis {axis}" if axis else ""
            raise IndexError(
                f"Out-of-bounds barrier at {_places[place]}: index {index} of {size}{along}"
            )
        return from_array.__func__(cls, request)

    return classmethod(key)


def _noted(post_write: Callable[..., Any]) -> Callable[..., Any]:
    """Remember at which phase of its barrier a copy arrives."""

    @functools.wraps(post_write)
    def written(self: Any, tma_thread_id: int, shared_memory: Any) -> None:
        copies = vars(shared_memory).setdefault("pytest_pallas_copies", [])
        # Before it arrives: afterwards others may have, too.
        copies.append((self.barrier, self.barrier.phase, self.source_info))
        post_write(self, tma_thread_id, shared_memory)

    return written


def _arrived(callbacks: Any, arrive: Callable[..., Any]) -> Callable[..., Any]:
    """Remember the last arrival of each thread at the barriers of other blocks."""

    @functools.wraps(arrive)
    def arrived(
        self: Any, *, thread: Any, clock: Any = None, logging_info: Any = None, **rest: Any
    ) -> None:
        if clock is not None:
            shared = callbacks._get_shared_memory()
            with shared.lock:
                noted = vars(shared).setdefault("pytest_pallas_arrivals", {})
                noted[id(self), thread] = self, clock.copy(), logging_info.source_info
        arrive(self, thread=thread, clock=clock, logging_info=logging_info, **rest)

    return arrived


def _unknown_arrivals(shared: Any, arrivals: dict[Any, Any]) -> Generator[tuple[int, Any]]:
    """Blocks whose threads know nothing of an arrival, with its place."""
    import numpy as np

    for (_, thread), (barrier, clock, source) in arrivals.items():
        position = shared.thread_to_vc_position(thread)
        dims, along = barrier.axes_dims[:-1], barrier.is_axis_collective[:-1]
        here = np.unravel_index(thread.block_id, dims)
        for block in range(int(np.prod(dims))):
            differ = [a for a, at in enumerate(np.unravel_index(block, dims)) if at != here[a]]
            if len(differ) != 1 or not along[differ[0]]:
                continue  # as JAX arrives at them
            known = max(
                shared.clocks[each].generic_clock.clock[position]
                for each in shared.all_concurrent_threads
                if each.block_id == block
            )
            if known < clock.generic_clock.clock[position]:
                yield block, source


def _settled(reset: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reset)
    def settled(self: Any) -> None:
        info: Any = importlib.import_module("jax._src.source_info_util")
        copies = vars(self).pop("pytest_pallas_copies", [])
        arrivals = vars(self).pop("pytest_pallas_arrivals", {})
        unknown = [*_unknown_arrivals(self, arrivals)]
        reset(self)
        for block, source in unknown:
            place = f" at {info.summarize(source)}" if source is not None else ""
            raise ValueError(
                f"Block {block} of the cluster may have ended when another one arrives at its "
                f"barrier{place}: none of its threads waits for that"
            )
        for barrier, phase, source in copies:
            seen = max(barrier.last_observed_phase_by_thread.values(), default=0)
            if seen <= phase:
                place = f" at {info.summarize(source)}" if source is not None else ""
                raise ValueError(
                    f"The copy from GMEM to SMEM{place} is under way when its block ends: "
                    "no thread waits for its barrier"
                )

    return settled
