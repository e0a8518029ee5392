"""Evaluate references with the simulator: one trace for each shape, no compilation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim import product_in_passes
from pallas_sim.errors import PallasError, SimulationError, SimulationLimitError
from pallas_sim.traces import KERNEL_PRIMITIVES, open_jaxpr
from pytest_pallas.backends.ending import raised_words
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.rewriting import closed_with, equations_of, with_equations, with_jaxprs
from pytest_pallas.backends.tracing import StaticPart, apply, jitted, on_host, split
from pytest_pallas.compat.fuzzing import is_rejection
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.judge.arithmetic import is_product, kept_precision
from pytest_pallas.judge.tolerance import FLOAT32_BITS, ProductPrecision

#: Limit on the equations of a reference: about a minute.
STEPS = 50_000_000

#: A flattened pytree: path and array of each leaf.
Leaves = list[tuple[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a reference.

    Attributes:
      leaves: path and array of each output.
      jaxpr: the trace, in the context of the evaluation, before products are rounded; None for a
        reference that JAX cannot trace. JAX caches it, and returns the same object for the same
        shapes and dtypes.
      arrays: the inputs of ``jaxpr``.
      fallbacks: the reasons why JAX evaluated a part of it, or all; empty if the simulator did.
    """

    leaves: Leaves
    jaxpr: Any = None
    arrays: Sequence[Any] = ()
    fallbacks: tuple[str, ...] = ()


def evaluate_reference(
    reference: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    how: str,
    products: ProductPrecision | None = None,
) -> Evaluation:
    """Evaluate a reference in the current context of JAX (x64 or not).

    A reference that JAX cannot trace, because it is numpy or reads values, is called with values,
    and its jnp operations are evaluated one by one. If that fails, it is called with JAX arrays.

    Args:
      reference: the function in jnp or numpy.
      args: pytrees of arrays.
      options: keyword arguments, passed unchanged.
      how: the dtypes, for messages.
      products: the precision of products of float32 without an explicit one; None for float32.
        Products that JAX or numpy evaluates have that of float32.

    Raises:
      KernelReferenceError: the reference raised, does not end, or returned no arrays.
    """
    static, arrays = on_host(Call(function=reference, args=args, options=options))
    evaluation, missing = None, ""
    for evaluate in (_traced, _eager):
        try:
            evaluation = evaluate(static, arrays, products)
            break
        except SimulationLimitError as error:
            failed = KernelReferenceError(f"the reference {name_of(reference)}: {error}")
            failed.timed_out = error.timed_out
            raise failed from error
        except SimulationError as error:
            missing = missing or str(error)
        except Exception as error:  # numpy, code that reads values, or an error
            if is_rejection(error):
                raise
            continue  # to a call that raises the error again
    if evaluation is None:
        evaluation = replace(
            _as_it_is(reference, args, options, how), fallbacks=(missing,) * bool(missing)
        )
    if not evaluation.leaves or any(array.dtype.kind in "OSU" for _, array in evaluation.leaves):
        raise KernelReferenceError(
            f"the reference {name_of(reference)} must return an array or a pytree of arrays"
        )
    return evaluation


def evaluate_again(evaluation: Evaluation, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Evaluate a traced reference for other inputs; outputs come in the order of ``leaves``.

    Raises:
      SimulationError: it cannot be evaluated.
    """
    from pallas_sim import evaluate

    return evaluate(evaluation.jaxpr, _machine(), arrays)


def least_magnitude(evaluation: Evaluation) -> float:
    """Return the least magnitude that a reference computes with; see ``MagnitudeRecorder``.

    It is 0 for a reference that JAX cannot trace, or that cannot be evaluated.
    """
    from pallas_sim import MagnitudeRecorder, evaluate

    if evaluation.jaxpr is None:
        return 0.0
    machine, recorder = _machine(), MagnitudeRecorder()
    machine.inspector = recorder
    try:
        evaluate(evaluation.jaxpr, machine, evaluation.arrays)
    except SimulationError:
        return 0.0
    return recorder.least


def _traced(static: StaticPart, arrays: list[Any], products: ProductPrecision | None) -> Evaluation:
    """Trace a reference and evaluate the trace."""
    from pallas_sim import evaluate

    machine = _machine()
    traced = jitted(static).trace(arrays)
    jaxpr = traced.jaxpr if products is None else with_precision(traced.jaxpr, products)
    values = evaluate(jaxpr, machine, arrays)
    leaves = flatten(jax.tree.unflatten(jax.tree.structure(traced.out_info), values))
    return Evaluation(leaves, traced.jaxpr, arrays, _fallbacks(machine))


def _eager(static: StaticPart, arrays: list[Any], products: ProductPrecision | None) -> Evaluation:
    """Call a reference and evaluate its operations one by one."""
    from pallas_sim import run_eagerly

    machine = _machine()

    def change(jaxpr: Any) -> Any:
        return jaxpr if products is None else with_precision(jaxpr, products)

    values = run_eagerly(lambda *operands: apply(static, [*operands]), machine, arrays, change)
    return Evaluation(flatten(values), fallbacks=_fallbacks(machine))


_Rounded = dict[ProductPrecision, Any]
_ROUNDED = weakref.WeakKeyDictionary[Any, _Rounded]()


def with_precision(jaxpr: Any, products: ProductPrecision) -> Any:
    """Add equations to a jaxpr that round the operands of products of float32.

    A product with an explicit precision keeps at least that. Pallas kernels stay as they are.

    Args:
      jaxpr: what JAX traced, open or closed; returned as it is if it has no such product.
      products: the precision of products without an explicit one.
    """
    known = _ROUNDED.setdefault(jaxpr, {})
    if products not in known:
        inner, _ = open_jaxpr(jaxpr)
        changed = _with_precision(inner, products)
        same = changed is inner  # not kept: a value that is its key is never freed
        known[products] = None if same else closed_with(jaxpr, changed)
    return known[products] or jaxpr


def _with_precision(jaxpr: Any, products: ProductPrecision) -> Any:
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        if is_product(eqn):
            eqns += _in_precision(eqn, kept_precision(eqn.params, products))
        elif eqn.primitive.name in KERNEL_PRIMITIVES:
            eqns.append(eqn)
        else:
            eqns.append(with_jaxprs(eqn, lambda inner: _with_precision(inner, products)))
    same = [*map(id, eqns)] == [*map(id, jaxpr.eqns)]
    return jaxpr if same else with_equations(jaxpr, eqns, jaxpr.outvars)


def _in_precision(eqn: Any, precision: ProductPrecision | None) -> list[Any]:
    """Return the equations of a product in a precision; None is float32."""
    if precision is None:
        return [eqn]
    if precision.passes:
        return _in_passes(eqn, precision.passes)
    operands = eqn.invars[:2]
    rounding, results = equations_of(
        lambda *arrays: [_rounded_to(array, precision.bits) for array in arrays], operands, eqn
    )
    return [*rounding, eqn.replace(invars=[*results, *eqn.invars[2:]])]


def _in_passes(eqn: Any, passes: int) -> list[Any]:
    """Return the equations of a product in the passes of a TPU."""

    def product(a: Any, b: Any, *rest: Any) -> list[Any]:
        def multiply(left: Any, right: Any) -> Any:
            return eqn.primitive.bind(left, right, *rest, **eqn.params)

        return [product_in_passes(multiply, a, b, passes)]

    *eqns, last = equations_of(product, eqn.invars, eqn)[0]
    return [*eqns, last.replace(outvars=eqn.outvars)]


def _rounded_to(array: Any, bits: int) -> Any:
    """Float32 numbers with so many fractional bits: to nearest, half away from zero."""
    dropped = FLOAT32_BITS - bits
    patterns = jax.lax.bitcast_convert_type(array, jnp.uint32) + np.uint32(1 << (dropped - 1))
    patterns &= np.uint32((1 << 32) - (1 << dropped))
    rounded = jax.lax.bitcast_convert_type(patterns, jnp.float32)
    return jax.lax.select(jnp.isfinite(array), rounded, array)


def _machine() -> Any:
    from pallas_sim import Limits, Machine

    return Machine(limits=Limits(steps=STEPS))


def _fallbacks(machine: Any) -> tuple[str, ...]:
    return (f"no rule for {', '.join(sorted(machine.fallbacks))}",) if machine.fallbacks else ()


def _as_it_is(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], how: str
) -> Evaluation:
    """Call a reference with JAX arrays, so that JAX compiles and evaluates its operations."""
    # from the caller's arrays, because a failed evaluation may have changed its own
    static, arrays = split(Call(function=reference, args=args, options=options))
    try:
        return Evaluation(flatten(jax.block_until_ready(apply(static, arrays))))
    except PallasError:
        raise
    except Exception as error:
        if is_rejection(error):
            raise
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        kind, text = raised_words(error)
        raise KernelReferenceError(
            f"the reference {name_of(reference)}, evaluated {how} on ({shapes}), raised "
            f"{kind}: {text}"
        ) from error


def flatten(values: Any) -> Leaves:
    """Flatten a pytree to (path, numpy array) pairs. A lone array has the path ""."""
    return [
        (jax.tree_util.keystr(path), to_numpy(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(values)
    ]


def name_of(function: Any) -> str:
    """Return the name of a function, also inside partials and wrappers of checks."""
    inner = getattr(function, "func", None) or getattr(function, "function", None)
    return name_of(inner) if callable(inner) else getattr(function, "__name__", repr(function))
