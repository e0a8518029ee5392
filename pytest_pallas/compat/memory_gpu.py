"""Private names of JAX: what the GPU interpreter puts where nobody has written, and what kernels
return there.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

#: Memory that a kernel gets without contents: what pads a block beyond the edge of its array, an
#: output, and scratch, which includes what the body allocates.
Place = Literal["padding", "output", "scratch"]

#: The module that interprets a ``pallas_call``, by ``interpret_pallas_call``.
INTERPRETING = "jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call"


class _Staging(threading.local):
    """What this thread makes memory for."""

    place: Place | None = None


_staging = _Staging()


def memory_place() -> Place:
    """What the interpreter makes memory for, inside ``memory_placed``, while it asks what it holds.

    An output where it asks while the kernel runs.
    """
    return _staging.place or "output"


@contextmanager
def memory_placed() -> Generator[None]:
    """Let ``memory_place`` tell for what the interpreter makes memory.

    What asks is wrapped: the function that pads, and the one that makes outputs. Seen in JAX 0.11.2
    and 0.12.0.1.
    """
    shared: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
    gpu: Any = importlib.import_module(INTERPRETING)
    array_of = shared.get_uninitialized_array

    def shared_array(*args: Any) -> Any:
        return _at(_staging.place or "scratch", array_of)(*args)

    with ExitStack() as stack:
        for owner, name, new in (
            (shared, "get_uninitialized_array", shared_array),
            (shared, "pad_to_block_dimension", _at("padding", shared.pad_to_block_dimension)),
            (
                gpu,
                "_allocate_buffers_for_outputs",
                _at("output", gpu._allocate_buffers_for_outputs),
            ),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        yield


def _at(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in which memory is made for a place."""

    def placed(*args: Any, **options: Any) -> Any:
        before, _staging.place = _staging.place, place
        try:
            return function(*args, **options)
        finally:
            _staging.place = before

    return placed


@contextmanager
def memory_filled(value_of: Callable[[Any], Any]) -> Generator[None]:
    """Let the GPU interpreter fill memory that nobody has written with other values.

    It asks one function for all of it, and for what pads blocks beyond the edge of an array. That
    also has a mode ``"zero"``, which is left alone: Mosaic GPU's accumulators start so.

    Args:
      value_of: the value for a dtype; None leaves the interpreter's own.

    Traces made inside are cached by JAX as any other: the caller must be in a context that is
    part of jit's key. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    shared: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
    scalar_of = shared.get_uninitialized_value

    def filled_scalar(dtype: Any, uninitialized_memory: str) -> Any:
        value = value_of(dtype) if uninitialized_memory == "nan" else None
        return scalar_of(dtype, uninitialized_memory) if value is None else value

    shared.get_uninitialized_value = filled_scalar
    try:
        yield
    finally:
        shared.get_uninitialized_value = scalar_of


#: Told what a kernel returned: the parameters of its equation and its outputs.
Told = Callable[[Any, Sequence[Any]], None]

_listening: list[Told] = []


@contextmanager
def outputs_told(told: Told) -> Generator[None]:
    """Tell what every ``pallas_call`` that is interpreted returns, in numpy arrays, once a run.

    The caller must be in a context that is part of jit's key. The calls
    come from other threads, at the latest when ``jax.effects_barrier()`` returns. Seen in JAX
    0.11.2 and 0.12.0.1.
    """
    import jax

    module: Any = importlib.import_module(INTERPRETING)
    interpret = module.interpret_pallas_call

    def telling(*args: Any, **params: Any) -> Any:
        outputs = interpret(*args, **params)

        def tell(*values: Any) -> None:
            for told in list(_listening):
                told(params, values)

        jax.debug.callback(tell, *outputs)
        return outputs

    module.interpret_pallas_call = telling
    _listening.append(told)
    try:
        yield
    finally:
        _listening.remove(told)
        module.interpret_pallas_call = interpret
