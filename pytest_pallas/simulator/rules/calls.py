"""Rules: calls of other programs and of Python, what a kernel asserts, and what it prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.eager import bind
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.program import CALLS, called, prepare, prepare_lifted
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.simulator.values import to_jax


@rule(*CALLS, threaded=True)
def _call(eqn: Equation) -> Evaluate:
    program = prepare(called(eqn.params))
    return lambda thread, *args: run(program, thread, args)


#: Names of values, promises about them, and where they are: all the same to a simulated device.
_PASSED = (
    *("stop_gradient", "copy", "copy_p", "multiple_of", "name", "stage", "xla_metadata_value"),
    *("pvary", "reduced_vary_cast", "vary_unreduced_cast", "preduced"),
)


@rule(*_PASSED)
def _same(eqn: Equation) -> Evaluate:
    return lambda value, *_: value


@rule("optimization_barrier", "device_put")
def _barrier(eqn: Equation) -> Evaluate:
    return lambda *values: values


@rule("tie")
def _tie(eqn: Equation) -> Evaluate:
    return lambda before, value: value


@rule("dce_sink", "add_dependency", "trace_value")
def _nothing(eqn: Equation) -> Evaluate:
    """What keeps values from being optimized away, orders operations, or is for a profiler."""
    return lambda *_: ()


@rule("custom_fusion", threaded=True)
def _custom_fusion(eqn: Equation) -> Evaluate:
    """A function that may have another implementation inside of kernels."""
    params = eqn.params
    first, second = params["num_consts"], params["num_consts"] + params["pallas_num_consts"]
    program = prepare_lifted(params["jaxpr"])
    own = params["pallas_jaxpr"]
    inside = None if own is None else prepare_lifted(own)

    def evaluate(thread: Thread, *values: Any) -> Any:
        args = values[second:]
        if inside is not None and thread.kernels:
            return run(inside, thread, (*values[first:second], *args))
        return run(program, thread, (*values[:first], *args))

    return evaluate


#: What JAX calls the platforms of the simulated chips in ``lax.platform_dependent``.
_PLATFORMS = {"tpu": "tpu", "gpu": "cuda"}


@rule("platform_index", threaded=True)
def _platform_index(eqn: Equation) -> Evaluate:
    """Which branch of ``lax.platform_dependent`` is for the machine; else that for the host."""
    platforms = eqn.params["platforms"]

    def evaluate(thread: Thread) -> Any:
        wanted = thread.machine.platform
        for name in (_PLATFORMS[wanted], None, "cpu"):
            for number, names in enumerate(platforms):
                if name in (names or (None,)):
                    return np.int32(number)
        raise SimulationError(
            f"lax.platform_dependent has no branch for a {wanted.upper()}, only {platforms}"
        )

    return evaluate


@rule("pure_callback", "io_callback")
def _callback(eqn: Equation) -> Evaluate:
    """Python on the host, which gets arrays of JAX."""
    callback = eqn.params["callback"]

    def evaluate(*values: Any) -> Any:
        import jax
        from jax.core import eval_context

        with jax.default_device(jax.local_devices(backend="cpu")[0]), eval_context():
            results = callback(*(jax.device_put(to_jax(value)) for value in values))
        found = [np.asarray(each) for each in jax.tree.leaves(results)]
        wanted = [(out.shape, out.dtype) for out in eqn.outs]
        if [(each.shape, each.dtype) for each in found] != wanted:
            given = ", ".join(f"{each.dtype}{list(each.shape)}" for each in found)
            expected = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in wanted)
            raise SimulationError(f"a callback returns {given or 'nothing'} instead of {expected}")
        return found

    return evaluate


@rule("check", threaded=True)
def _check(eqn: Equation) -> Evaluate:
    """``pl.debug_check`` and ``checkify.check``: what does not hold is a finding."""

    def evaluate(thread: Thread, *values: Any) -> Any:
        import jax

        message = jax.tree.unflatten(eqn.params["err_tree"], values).get()
        if message is not None:
            message = f"an assertion of the kernel fails: {message}"
            thread.report("assertion", message, eqn.line)
        return ()

    return evaluate


@rule("debug_print", "debug_callback")
def _debug(eqn: Equation) -> Evaluate:
    """JAX prints, or calls the function that it was given."""

    def evaluate(*values: Any) -> Any:
        arrays = [value.data if isinstance(value, Ref) else np.asarray(value) for value in values]
        from jax.core import eval_context

        with eval_context():
            return bind(eqn.origin, arrays)

    return evaluate
