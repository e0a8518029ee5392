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
    memory: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.shared_memory")
    callbacks: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    buffer, load = memory.Buffer, callbacks.AsyncCopyGmemToSmemTask
    call, get, clip = load.__call__, buffer.__getitem__, callbacks._clip_store_to_shape

    def read(self: Any, *args: Any) -> None:
        token = _reading.set(True)
        try:
            call(self, *args)
        finally:
            _reading.reset(token)

    def framed(self: Any, where: tuple[slice | int, ...]) -> Any:
        if not _reading.get() or not _begins_before(where):
            return get(self, where)
        import numpy as np

        where += tuple(slice(0, size) for size in self.logical_shape[len(where) :])
        values = np.zeros([e.stop - e.start for e in where if isinstance(e, slice)], self.dtype)
        inside, skipped = _inside(where)
        if inside is not None:
            part = get(self, inside)
            place = zip(skipped, part.shape, strict=True)
            values[tuple(slice(first, first + size) for first, size in place)] = part
        return values

    def clipped(access: Any, value: Any, shape: tuple[int, ...]) -> Any:
        if access.permutation is None and _begins_before(access.range):
            inside, skipped = _inside(access.range)
            if inside is None:
                return None
            access, value = type(access)(inside), value[tuple(slice(n, None) for n in skipped)]
        return clip(access, value, shape)

    load.__call__, buffer.__getitem__, callbacks._clip_store_to_shape = read, framed, clipped
    try:
        yield
    finally:
        del load.__call__  # it inherits its own
        buffer.__getitem__, callbacks._clip_store_to_shape = get, clip


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
