"""Primitives without a rule: what JAX composes of others, or evaluates; others are rejected."""

from __future__ import annotations

from typing import Any

from pytest_pallas.compat.compositions import composition
from pytest_pallas.compat.jaxprs import sub_jaxprs
from pytest_pallas.sim_errors import MissingRuleError
from pytest_pallas.simulator.eager import bind
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.simulator.values import from_jax, to_jax


def fallback(eqn: Equation) -> Evaluate:
    """Evaluate an equation as what JAX lowers it to, or by JAX on the CPU.

    JAX compiles for each shape; runs count it.

    Raises:
      MissingRuleError: the primitive has effects, works on references, or runs a program.
    """
    if not _is_pure(eqn):
        raise _missing(eqn)
    composed = _composed(eqn)
    if composed is not None:
        return composed
    if any(sub_jaxprs(eqn.origin)):
        raise _missing(eqn)
    return by_jax(eqn)


def by_jax(eqn: Equation) -> Evaluate:
    """Evaluate an equation by JAX on the CPU."""

    def evaluate(thread: Thread, *values: Any) -> Any:
        import jax
        from jax.core import eval_context

        thread.machine.fallbacks[eqn.name] += 1
        with jax.default_device(jax.local_devices(backend="cpu")[0]), eval_context():
            results = bind(eqn.origin, [to_jax(value) for value in values])
        found = [from_jax(each, out) for each, out in zip(results, eqn.outs, strict=True)]
        return found if eqn.origin.primitive.multiple_results else found[0]

    return evaluate


def _composed(eqn: Equation) -> Evaluate | None:
    """How to evaluate what JAX composes a primitive of; None if it does not."""
    # These import this module.
    from pytest_pallas.simulator.evaluation import run
    from pytest_pallas.simulator.program import prepare

    jaxpr = composition(eqn.origin.primitive, eqn.ins, eqn.params)
    if jaxpr is None:
        return None
    program = prepare(jaxpr)
    if eqn.origin.primitive.multiple_results:
        return lambda thread, *values: run(program, thread, values)
    return lambda thread, *values: run(program, thread, values)[0]


def _missing(eqn: Equation) -> MissingRuleError:
    error = MissingRuleError(f"the simulator has no rule for the primitive {eqn.name!r}")
    error.at(eqn.line, "")
    return error


def _is_pure(eqn: Equation) -> bool:
    """Whether an equation only computes arrays of arrays."""
    if eqn.origin is None or eqn.origin.effects:
        return False
    return not any(hasattr(aval, "inner_aval") for aval in (*eqn.ins, *eqn.outs))
