"""``analyze``: the grids of a function, traced for a chip that need not be present."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import jax

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Target
from pallas_sim.errors import KernelError, PallasError
from pallas_sim.traces import interpret_ignored
from pallas_sim.tracing import absent_chip, present
from pytest_pallas.backends.execution import brief, readable
from pytest_pallas.backends.protocol import Call, expected_warnings
from pytest_pallas.backends.tracing import abstract, jitted
from pytest_pallas.compat.fuzzing import is_rejection
from pytest_pallas.errors import NoPallasCallError
from pytest_pallas.grid.analysis import Analysis, analyze_jaxpr


def analyze(function: Callable[..., Any], *args: Any, **options: Any) -> Analysis:
    """Return the blocks that each program of a Pallas kernel reads and writes, with findings.

    It neither runs nor compiles the function: it traces it as on a TPU v6e, and evaluates the index
    maps over the grid. Kernels with compiler params or memory spaces of GPUs are analyzed as GPU
    kernels. docs/grid.md explains the findings.

    Args:
      function: calls one or several kernels, also inside ``jit``, ``vmap``, ``shard_map``,
        ``custom_vjp``, loops and branches.
      *args: its arguments. A ``jax.ShapeDtypeStruct`` may stand for an array. Index maps that read
        prefetched scalars need values: without them, the report lists the operands whose blocks are
        not known.
      **options: keyword arguments, passed untraced.

    Returns:
      An object with ``findings``, and ``report()``, which returns them as text.

    Raises:
      NoPallasCallError: the function has no Pallas kernel for these arguments.
      KernelError: the function raised while JAX traced it.
    """
    return analyze_for(TARGETS[DEFAULT_TARGETS["tpu"]], function, *args, **options)


def analyze_for(
    target: Target, function: Callable[..., Any], /, *args: Any, **options: Any
) -> Analysis:
    """Analyze a function as ``analyze`` does, traced as on ``target``."""
    call = Call(function=function, args=args, options=options)
    context = functools.partial(on_chip, target)
    analysis = analyzed(call, platform=target.platform, target=target, context=context)
    if not analysis.calls and not analysis.others:
        name = getattr(function, "__name__", repr(function))
        raise NoPallasCallError(
            f"{name} has no Pallas kernel for these arguments, so there is no grid. Pass the "
            "function that calls pl.pallas_call, or arguments for which it does not fall back to "
            "jnp."
        )
    return analysis


def analyzed(
    call: Call,
    *,
    platform: str,
    target: Target,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Analysis:
    """Analyze a call.

    Args:
      call: the call to analyze.
      platform: the platform of kernels that do not show their own.
      target: the chip whose VMEM is the limit.
      context: makes the context to trace in.

    Raises:
      KernelError: the function raised while JAX traced it.
    """
    static, shapes = abstract(call)
    try:
        with context():
            closed = jitted(static).trace(shapes).jaxpr
    except PallasError:
        raise
    except Exception as error:  # tracing runs user code
        if is_rejection(error):
            raise
        raised = readable(error)
        text = (
            f"the kernel raised {type(raised).__name__} while JAX traced it: {brief(str(raised))}"
        )
        raise KernelError(text) from error
    leaves = jax.tree.leaves((call.args, dict(call.options)))
    # in the order of ``tracing.abstract``
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype") and hasattr(leaf, "shape")]
    return analyze_jaxpr(closed, arrays, platform=platform, chip=target.name)


def on_chip(target: Target) -> AbstractContextManager[Any]:
    """Trace as on a chip, and override interpret=."""
    stack = ExitStack()
    for context in (interpret_ignored(), present(absent_chip(target)), expected_warnings()):
        stack.enter_context(context)
    return stack
