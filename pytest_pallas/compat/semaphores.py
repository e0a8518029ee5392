"""Private names of JAX: ``pl.semaphore_read``, for which the TPU interpreter has no rule.

A semaphore of copies counts those that somebody waited for, whatever ``dma`` says: the interpreter
makes copies late. Reading orders nothing: what another core did before it signalled is known to be
done after a wait only.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import jax

from pytest_pallas.compat.equations import Rule, Staged


def semaphore_rule(eqn: Any) -> Rule | None:
    """The rule for an equation that reads a semaphore, or None."""
    return _read if eqn.primitive.name == "semaphore_read" else None


def _read(staged: Staged, values: Sequence[Any], token: Any) -> tuple[Any, Sequence[Any]]:
    module, ctx, params = staged.module, staged.ctx, staged.eqn.params
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    semaphore, transforms = jax.tree.unflatten(params["args_tree"], list(values))

    def count(token: Any, device: Any, core: Any, number: Any) -> Any:
        memory = module._get_shared_memory()
        here = memory.get_global_core_id(int(device), int(core))
        (found,), _ = memory.get_semaphores_and_increment_clock([int(number)], here)
        with found.cv:
            return token, found.count_by_core[here]

    aval = staged.eqn.outvars[0].aval
    token, read = module.callback.io_callback(
        count,
        (module.TOKEN_SHAPE_DTYPE, jax.ShapeDtypeStruct(aval.shape, aval.dtype)),
        token,
        ctx.device_id,
        ctx.local_core_id,
        discharge.transform_array(semaphore, transforms),
    )
    return token, [read]
