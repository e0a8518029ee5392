"""Private names of JAX: what interpreters put where nobody has written, and what kernels return."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

#: Memory that a kernel gets without contents: what pads a block beyond the edge of its array, an
#: output (also the window of its block), and scratch, which includes what the body allocates.
#: The window of an input's block is filled from the array before anybody can look.
Place = Literal["padding", "output", "scratch", "input"]

_TPU = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
_GPU = "jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call"
_PORTABLE = "jax._src.pallas.hlo_interpreter"

#: The functions that interpret a ``pallas_call``: module and name.
INTERPRETING = (
    (_PORTABLE, "pallas_call_hlo_interpret"),
    (_TPU, "interpret_pallas_call"),
    (_GPU, "interpret_pallas_call"),
)


class _Staging(threading.local):
    """What this thread makes memory for."""

    place: Place | None = None
    #: For what the TPU interpreter asks next, in its order.
    expected: Sequence[Place] = ()


_staging = _Staging()


def memory_place() -> Place:
    """What an interpreter makes memory for, inside ``memory_placed``, while it asks what it holds.

    An output where it asks while the kernel runs: the window of an output's block is forgotten
    when its block is done.
    """
    return _staging.place or "output"


@contextmanager
def memory_placed() -> Generator[None]:
    """Let ``memory_place`` tell for what the interpreters make memory.

    What asks is wrapped: functions that pad, those that make outputs, and the TPU interpreter as a
    whole, which asks for one operand of the kernel after the other. Seen in JAX 0.11.2 and
    0.12.0.1.
    """
    portable: Any = importlib.import_module("jax._src.pallas.primitives")
    shared: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
    value_of, array_of = portable.uninitialized_value, shared.get_uninitialized_array

    def portable_value(shape: Any, dtype: Any) -> Any:
        return _at(_staging.place or ("scratch" if shape else "padding"), value_of)(shape, dtype)

    def shared_array(*args: Any) -> Any:
        place = _staging.place
        if place is None:
            place = "scratch"
            if _staging.expected:
                place, *_staging.expected = _staging.expected
        return _at(place, array_of)(*args)

    with ExitStack() as stack:
        for owner, name, new in (
            (portable, "uninitialized_value", portable_value),
            (shared, "get_uninitialized_array", shared_array),
            (shared, "pad_to_block_dimension", _at("padding", shared.pad_to_block_dimension)),
            *_wrapped(_PORTABLE, "_initialize_output_vals", lambda inner: _at("output", inner)),
            *_wrapped(_GPU, "_allocate_buffers_for_outputs", lambda inner: _at("output", inner)),
            *_wrapped(_TPU, "interpret_pallas_call", _expecting),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        yield


def _wrapped(
    module: str, name: str, wrap: Callable[[Any], Any]
) -> Sequence[tuple[Any, str, Callable[..., Any]]]:
    owner = importlib.import_module(module)
    return [(owner, name, wrap(getattr(owner, name)))]


def _at(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in which memory is made for a place."""

    def placed(*args: Any, **options: Any) -> Any:
        before, _staging.place = _staging.place, place
        try:
            return function(*args, **options)
        finally:
            _staging.place = before

    return placed


def _expecting(interpret: Callable[..., Any]) -> Callable[..., Any]:
    """The TPU interpreter, with the order in which it asks for memory known."""

    def expecting(*args: Any, **params: Any) -> Any:
        before, _staging.expected = _staging.expected, _asked_for(params)
        try:
            return interpret(*args, **params)
        finally:
            _staging.expected = before

    return expecting


def _asked_for(params: Any) -> Sequence[Place]:
    """Outputs in HBM without an alias; then every window and scratch operand that is not there."""
    module: Any = importlib.import_module(_TPU)
    mapping, jaxpr = params["grid_mapping"], params["jaxpr"]
    inputs, outputs = mapping.num_inputs, mapping.num_outputs
    found: list[Place] = ["output"] * (outputs - len(params["input_output_aliases"]))
    for i, var in enumerate(jaxpr.invars[mapping.num_index_operands :]):
        aval = mapping.block_mappings[i].transformed_block_aval if i < inputs + outputs else None
        space = module._forward_any_to_hbm((var.aval if aval is None else aval).memory_space)
        if space is module._SEMAPHORE or space is module._HBM:
            continue
        found.append("input" if i < inputs else "output" if aval is not None else "scratch")
    return found


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
    with ExitStack() as stack:
        for module, name in INTERPRETING:
            [(owner, _, new)] = _wrapped(module, name, _telling)
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        _listening.append(told)
        try:
            yield
        finally:
            _listening.remove(told)


def _telling(interpret: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    def telling(*args: Any, **params: Any) -> Any:
        outputs = interpret(*args, **params)

        def tell(*values: Any) -> None:
            for told in list(_listening):
                told(params, values)

        jax.debug.callback(tell, *outputs)
        return outputs

    return telling
