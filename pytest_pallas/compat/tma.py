"""Private names of JAX: TMA copies whose window begins before the array, in the GPU interpreter.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Whether a TMA reads.
_reading = ContextVar("_reading", default=False)


@contextmanager
def tma_windows_from_before() -> Generator[None]:
    """Let TMA copies of the GPU interpreter begin before an array, as those of a halo do.

    Of such a window it clips only the end. A chip does both: it reads zeros outside of the array,
    and stores nothing there (CUDA C++ Programming Guide, tensor memory access).
    """
    memory: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.shared_memory")
    callbacks: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    shared, load = memory.GPUSharedMemory, callbacks.AsyncCopyGmemToSmemTask
    # Not Buffer.__getitem__: CPython 3.13 caches it, and forgets to look again in a class that was
    # changed a thousand times.
    call, get, clip = load.__call__, shared.get_buffer_content, callbacks._clip_store_to_shape

    def read(self: Any, *args: Any) -> None:
        token = _reading.set(True)
        try:
            call(self, *args)
        finally:
            _reading.reset(token)

    def framed(self: Any, key: Any, access: Any, *args: Any, **rest: Any) -> Any:
        if not (_reading.get() and _begins_before(access.range)):
            return get(self, key, access, *args, **rest)
        inside, skipped = _inside(access.range)
        if inside is None:
            return get(self, key, access, *args, **rest)
        part, about, clock = get(self, key, type(access)(inside), *args, **rest)
        if part is None:  # it is beyond the end along another axis
            return part, about, clock
        import numpy as np

        sizes = [each.stop - each.start for each in access.range if isinstance(each, slice)]
        values = np.zeros(sizes, part.dtype)
        place = zip(skipped, part.shape, strict=True)
        values[tuple(slice(first, first + size) for first, size in place)] = part
        if access.permutation is not None:
            values = values.transpose(access.permutation)
        return values, about, clock

    def clipped(access: Any, value: Any, shape: tuple[int, ...]) -> Any:
        if access.permutation is None and _begins_before(access.range):
            inside, skipped = _inside(access.range)
            if inside is None:
                return None
            access, value = type(access)(inside), value[tuple(slice(n, None) for n in skipped)]
        return clip(access, value, shape)

    load.__call__, shared.get_buffer_content = read, framed
    callbacks._clip_store_to_shape = clipped
    try:
        yield
    finally:
        del load.__call__  # it inherits its own
        shared.get_buffer_content, callbacks._clip_store_to_shape = get, clip


def _begins_before(where: tuple[slice | int, ...]) -> bool:
    starts = [each.start if isinstance(each, slice) else each for each in where]
    plain = all(each.step in (None, 1) for each in where if isinstance(each, slice))
    return plain and any(start is not None and start < 0 for start in starts)


def _inside(
    where: tuple[slice | int, ...],
) -> tuple[tuple[slice | int, ...] | None, list[int]]:
    """The part of a window from 0 on, None if there is none, and what is skipped of each slice."""
    inside = tuple(
        slice(max(0, each.start), each.stop) if isinstance(each, slice) else each for each in where
    )
    skipped = [max(0, -each.start) for each in where if isinstance(each, slice)]
    outside = any(
        each.stop <= each.start if isinstance(each, slice) else each < 0 for each in inside
    )
    return None if outside else inside, skipped
