"""References: traced once for each shape, and evaluated by the simulator: nothing compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends import Call
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.tracing import Static, apply, jitted, on_host, split
from pytest_pallas.compat.rejection import is_rejection
from pytest_pallas.errors import (
    PallasTestError,
    ReferenceError,
    SimulationError,
    SimulationLimitError,
)

#: How many equations a reference may take: about a minute.
STEPS = 50_000_000

#: A flattened pytree: path and array of each leaf.
Leaves = list[tuple[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Evaluation:
    """What a reference returned.

    Attributes:
      leaves: path and array of each output.
      jaxpr: what JAX traced, in the context of the evaluation; None for a reference that JAX cannot
        trace. JAX keeps the trace, and gives the same object for the same shapes and dtypes.
      arrays: the inputs of ``jaxpr``.
      fallbacks: why JAX evaluated some of it, or all, which compiles; empty if it did not.
    """

    leaves: Leaves
    jaxpr: Any = None
    arrays: Sequence[Any] = ()
    fallbacks: tuple[str, ...] = ()


def evaluate_reference(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], how: str
) -> Evaluation:
    """Evaluate a reference in the current context of JAX (x64 or not).

    A reference that JAX cannot trace, because it is numpy or looks at values, is called with
    values: its operations in jnp are evaluated one by one. What that does not take is called with
    arrays of JAX.

    Args:
      reference: the function in jnp or numpy.
      args: pytrees of arrays.
      options: keyword arguments, passed as they are.
      how: in which dtypes, for messages.

    Raises:
      ReferenceError: the reference raised, does not end, or returned no arrays.
    """
    static, arrays = on_host(Call(function=reference, args=args, options=options))
    found, missing = None, ""
    for evaluate in (_traced, _eager):
        try:
            found = evaluate(static, arrays)
            break
        except SimulationLimitError as error:
            raise ReferenceError(f"the reference {name_of(reference)}: {error}") from error
        except SimulationError as error:
            missing = missing or str(error)
        except Exception as error:  # numpy, Python that looks at values, or a mistake
            if is_rejection(error):
                raise
            continue  # to what raises a mistake again
    if found is None:
        found = replace(
            _as_it_is(reference, args, options, how), fallbacks=(missing,) * bool(missing)
        )
    if not found.leaves or any(array.dtype.kind in "OSU" for _, array in found.leaves):
        raise ReferenceError(
            f"the reference {name_of(reference)} must return an array or a pytree of arrays"
        )
    return found


def evaluate_again(evaluation: Evaluation, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a traced reference for other inputs, in the order of ``leaves``.

    Raises:
      SimulationError: it cannot be evaluated.
    """
    from pytest_pallas.simulator.simulate import evaluate

    return evaluate(evaluation.jaxpr, _machine(), arrays)


def _traced(static: Static, arrays: list[Any]) -> Evaluation:
    """The evaluation of what JAX traces."""
    from pytest_pallas.simulator.simulate import evaluate

    machine = _machine()
    traced = jitted().trace(static, arrays)
    values = evaluate(traced.jaxpr, machine, arrays)
    leaves = flatten(jax.tree.unflatten(jax.tree.structure(traced.out_info), values))
    return Evaluation(leaves, traced.jaxpr, arrays, _fallbacks(machine))


def _eager(static: Static, arrays: list[Any]) -> Evaluation:
    """The evaluation of one operation after the other."""
    from pytest_pallas.simulator.simulate import run_eagerly

    machine = _machine()
    values = run_eagerly(lambda *given: apply(static, [*given]), machine, arrays)
    return Evaluation(flatten(values), fallbacks=_fallbacks(machine))


def _machine() -> Any:
    from pytest_pallas.simulator.machine import Limits, Machine

    return Machine(limits=Limits(steps=STEPS))


def _fallbacks(machine: Any) -> tuple[str, ...]:
    return (f"no rule for {', '.join(sorted(machine.fallbacks))}",) if machine.fallbacks else ()


def _as_it_is(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], how: str
) -> Evaluation:
    """Call a reference with arrays of JAX, which evaluates and compiles its operations."""
    # From the caller's arrays: an evaluation that failed midway may have written to its own.
    static, arrays = split(Call(function=reference, args=args, options=options))
    try:
        return Evaluation(flatten(jax.block_until_ready(apply(static, arrays))))
    except PallasTestError:
        raise
    except Exception as error:
        if is_rejection(error):
            raise
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        raise ReferenceError(
            f"the reference {name_of(reference)} raised when it was evaluated {how} on ({shapes}): "
            f"{type(error).__name__}: {error}"
        ) from error


def flatten(values: Any) -> Leaves:
    """A pytree as (path, numpy array) pairs. A lone array has the path ""."""
    return [
        (jax.tree_util.keystr(path), to_numpy(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(values)
    ]


def name_of(function: Any) -> str:
    """The name of a function, also inside partials and the wrappers of checks."""
    inner = getattr(function, "func", None) or getattr(function, "function", None)
    return name_of(inner) if callable(inner) else getattr(function, "__name__", repr(function))
