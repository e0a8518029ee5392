"""Rules: what a kernel asserts, and what it prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.findings import Finding
from pytest_pallas.simulator.eager import bind
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.memory import Ref
from pytest_pallas.simulator.registry import Equation, Evaluate, rule


@rule("check", threaded=True)
def _check(eqn: Equation) -> Evaluate:
    """``pl.debug_check`` and ``checkify.check``: what does not hold is a finding."""

    def evaluate(thread: Thread, *values: Any) -> Any:
        import jax

        message = jax.tree.unflatten(eqn.params["err_tree"], values).get()
        if message is not None:
            thread.machine.report(
                Finding(
                    kind="assertion",
                    message=f"the kernel asserts what does not hold: {message}",
                    kernel=thread.kernels[-1] if thread.kernels else "",
                    program=thread.program,
                    line=eqn.line,
                )
            )
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
