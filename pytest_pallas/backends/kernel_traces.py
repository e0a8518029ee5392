"""The kernels of a call, from a trace alone, and the trace itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pallas_sim.tracing import tracing_for
from pytest_pallas.backends.protocol import Backend, Call, chip_of

if TYPE_CHECKING:
    from pytest_pallas.analysis import KernelCall


def kernels_of(
    call: Call, context: Callable[[], AbstractContextManager[Any]]
) -> Sequence[KernelCall] | None:
    """The kernels of a call; None if it cannot be traced within its time limit.

    Args:
      call: the call to trace; its arrays may be abstract.
      context: makes the context to trace in.
    """
    from pytest_pallas.analysis import kernel_calls

    traced = _traced(call, context)
    return None if traced is None else kernel_calls(traced.jaxpr)


def traced_kernels(call: Call, backend: Backend) -> Sequence[KernelCall]:
    """The kernels of a call on a backend, without its mutant; () if it cannot be traced."""
    return kernels_of(call.with_settings(mutant=None), _context_of(backend)) or ()


def traced_jaxpr(call: Call, backend: Backend) -> Any:
    """The trace of a call on a backend, without its mutant; None if it cannot be traced."""
    traced = _traced(call.with_settings(mutant=None), _context_of(backend))
    return None if traced is None else traced.jaxpr


def outputs_of(call: Call, backend: Backend) -> Sequence[Any]:
    """Shapes and dtypes of the outputs of a call on a backend; () if it cannot be traced.

    JAX caches the trace, which its run uses.
    """
    import jax

    traced = _traced(call, _context_of(backend))
    return () if traced is None else jax.tree.leaves(traced.out_info)


def _traced(call: Call, context: Callable[[], AbstractContextManager[Any]]) -> Any:
    from pytest_pallas.backends.ending import ending
    from pytest_pallas.backends.tracing import abstract, jitted

    try:
        static, shapes = abstract(call)
        with context(), ending(call.timeout):
            return jitted(static).trace(shapes)
    except Exception:  # tracing runs user code; the item will raise the same
        return None


def _context_of(backend: Backend) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context to trace in for a backend."""
    usual: Any = functools.partial(tracing_for, chip_of(backend))
    if backend.kind == "hardware":
        usual = nullcontext
    return getattr(backend, "context", usual)
