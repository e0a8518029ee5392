"""A trace of our own, which evaluates each operation when it is bound."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pallas_sim.compat.jaxprs import tracer_type
from pallas_sim.compat.source import source_line
from pallas_sim.errors import SimulationError

#: Primitives that give references.
_NEW = frozenset({"new_ref", "empty_ref"})

#: ``evaluate(jaxpr, values)``: the results of a jaxpr.
EvaluateJaxpr = Callable[[Any, Sequence[Any]], Sequence[Any]]


def evaluated_eagerly(
    function: Callable[..., Any], args: Sequence[Any], evaluate: EvaluateJaxpr
) -> Any:
    """Call a function on arrays, whose operations ``evaluate`` does in place of JAX.

    The function may look at values (``if x > 0``, ``np.asarray(x)``), and use ``jax.vjp``,
    ``jax.vmap`` and ``jax.jit``: these have traces of their own on top of this one. Seen in JAX
    0.11.2 and 0.12.0.1.

    Args:
      function: called with an array of JAX for each value; what its operations give are tracers,
        which have values.
      args: arrays.
      evaluate: is given a jaxpr for each operation, and gives its results.

    Returns:
      What the function returned, with values for tracers.
    """
    import jax

    # Plain arrays: without jit, a function that checks whether it is being traced finds that it is
    # not.
    arrays = [value if isinstance(value, jax.Array) else jax.device_put(value) for value in args]
    with evaluating_eagerly(evaluate) as trace:
        values = function(*arrays)
    return jax.tree.map(trace.lower, values)


@contextmanager
def evaluating_eagerly(evaluate: EvaluateJaxpr) -> Generator[Any]:
    """Let ``evaluate`` do JAX's operations in this context; see ``evaluated_eagerly``.

    Gives the trace, whose ``lower`` gives the value of a tracer. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    extended: Any = importlib.import_module("jax.extend.core")
    trace = _trace_type()(evaluate)
    with extended.set_current_trace(trace):
        yield trace


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an equation on concrete values."""
    results = _bound(eqn.primitive, values, eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _bound(primitive: Any, operands: Sequence[Any], params: Any) -> Any:
    functions: Sequence[Any] = ()
    bind_params = primitive.get_bind_params(params)
    if isinstance(bind_params, tuple):  # functions that are passed as operands, and the rest
        functions, bind_params = bind_params  # pyright: ignore[reportUnknownVariableType]
    return primitive.bind(*functions, *operands, **bind_params)  # pyright: ignore[reportUnknownArgumentType]


def _is_reference(aval: Any) -> bool:
    return hasattr(aval, "inner_aval")


def _require_outside_of_jit(eqn: Any) -> None:
    """Refuse a reference that JAX makes only inside of ``jax.jit``; JAX itself says which.

    Raises:
      SimulationError: JAX does not make it outside of ``jax.jit``.
    """
    import numpy as np

    name, params = eqn.primitive.name, eqn.params
    space, pinned = params["memory_space"], params.get("pin", False)
    if name == "new_ref" and space is None and not pinned:
        return
    try:  # a scalar: whether JAX refuses depends on the parameters only
        bind(eqn, [np.zeros((), np.float32)] * len(eqn.invars))
    except NotImplementedError as refusal:
        option = f"(memory_space={space})" if space is not None else "(pin=True)" if pinned else ""
        error = SimulationError(
            f"JAX refuses jax.{name}{option} outside of jax.jit ({str(refusal).rstrip('.')}): wrap "
            "the function that makes the reference and calls the kernel in jax.jit"
        )
        error.at(source_line(eqn) or "", "")
        raise error from refusal


@functools.cache
def _trace_type() -> Any:
    """Return the class of the trace, made when it is first needed, so that JAX is imported late."""
    import jax
    import numpy as np

    tracer = tracer_type()
    core: Any = importlib.import_module("jax.core")
    extended: Any = importlib.import_module("jax.extend.core")
    source: Any = importlib.import_module("jax.extend.source_info_util")
    source.register_exclusion(__file__)  # the line of an equation is the caller's

    class EagerTrace(core.Trace):
        """Evaluates each primitive when it is bound."""

        __slots__ = ("evaluate",)

        def __init__(self, evaluate: EvaluateJaxpr) -> None:
            super().__init__()
            self.evaluate = evaluate

        def lift(self, value: Any) -> Any:
            """Return a value as this trace's tracer."""
            if isinstance(value, tracer):
                return value
            aval = jax.typeof(getattr(value, "jax", value))
            if isinstance(value, (bool, int, float, complex)):
                value = np.asarray(value, aval.dtype)  # an operation may give it back as it is
            return tracer(self, aval, value)

        def lower(self, value: Any) -> Any:
            """Return the value of a tracer."""
            return value.value if isinstance(value, tracer) else value

        def stage_value(self, val: Any) -> Any:
            return self.lift(val)

        def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
            lifted = [self.lift(operand) for operand in tracers]
            avals = tuple(operand.aval for operand in lifted)
            with core.eval_context():
                of_refs = primitive.name in _NEW or any(map(_is_reference, avals))
                jaxpr = (_one_equation if of_refs else _traced)(primitive, avals, params)
                if primitive.name in _NEW:
                    _require_outside_of_jit(jaxpr.jaxpr.eqns[0])
            made = self._evaluated(jaxpr, lifted)
            return made if primitive.multiple_results else made[0]

        def process_shard_map(
            self, primitive: Any, fun: Any, tracers: Any, /, **params: Any
        ) -> Any:
            lifted = [self.lift(operand) for operand in tracers]
            trees: list[Any] = []

            def operation(*operands: Any) -> Any:
                trace = extended.find_top_trace(None)
                trees.append(trace.process_shard_map(primitive, fun, operands, **params))
                return trees[-1].vals

            with core.eval_context():
                jaxpr = jax.make_jaxpr(operation)(*[operand.aval for operand in lifted])
            return trees[-1].update(self._evaluated(jaxpr, lifted))

        def _evaluated(self, jaxpr: Any, lifted: Sequence[Any]) -> list[Any]:
            with core.eval_context():
                results = self.evaluate(jaxpr, [operand.value for operand in lifted])
            return [
                tracer(self, var.aval, value)
                for var, value in zip(jaxpr.jaxpr.outvars, results, strict=True)
            ]

        def process_custom_jvp_call(
            self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **_: Any
        ) -> Any:
            del primitive, jvp
            with extended.set_current_trace(self):
                return fun.call_wrapped(*tracers)

        def process_custom_vjp_call(
            self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **_: Any
        ) -> Any:
            del primitive, fwd, bwd
            with extended.set_current_trace(self):
                return fun.call_wrapped(*tracers)

    def _one_equation(primitive: Any, avals: tuple[Any, ...], params: Any) -> Any:
        """Return one operation on references as a jaxpr, because JAX does not trace these alone."""
        outs, effects = primitive.abstract_eval(*avals, **params)
        invars = list(map(extended.Var, avals))
        outvars = list(map(extended.Var, outs if primitive.multiple_results else [outs]))
        eqn = extended.new_jaxpr_eqn(invars, outvars, primitive, params, effects, source.current())
        named = extended.DebugInfo(primitive.name, primitive.name, None, None)
        inner = extended.Jaxpr((), invars, outvars, [eqn], effects, debug_info=named)
        return extended.ClosedJaxpr(inner, ())

    def _traced(primitive: Any, avals: tuple[Any, ...], params: Any) -> Any:
        """Return one operation as a jaxpr."""
        try:
            line = source.current().traceback
            key = (primitive, avals, tuple(sorted(params.items())), line)
            hash(key)
        except TypeError:
            return _trace(primitive, avals, params)
        jaxpr = cache.get(key)
        if jaxpr is None:
            if len(cache) > 4096:
                cache.clear()
            jaxpr = cache[key] = _trace(primitive, avals, params)
        return jaxpr

    def _trace(primitive: Any, avals: tuple[Any, ...], params: Any) -> Any:
        def operation(*operands: Any) -> Any:
            return _bound(primitive, operands, params)

        return jax.make_jaxpr(operation)(*avals)

    cache: dict[Any, Any] = {}
    return EagerTrace
