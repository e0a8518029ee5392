"""Private names of JAX: references that a kernel's body makes, by ``jax.empty_ref``.

The TPU interpreter has ``pl.run_scoped`` and not that. The buffer lives until the kernel ends.
Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pytest_pallas.compat.equations import Rule, Staged


def allocating_rule(eqn: Any) -> Rule | None:
    """The rule for an equation that makes a reference, or None."""
    return _empty_ref if eqn.primitive.name == "empty_ref" else None


def _empty_ref(staged: Staged, values: Sequence[Any], token: Any) -> tuple[Any, Sequence[Any]]:
    del values
    module, ctx, aval = staged.module, staged.ctx, staged.eqn.outvars[0].aval
    space = module._forward_any_to_hbm(aval.memory_space)
    if space is None or space.name in ("HBM", "DEVICE"):
        raise NotImplementedError("jax.empty_ref in a kernel makes no memory in HBM")
    core = (token, ctx.device_id, ctx.local_core_id)
    if space is module._SEMAPHORE:
        numbers = (module.TOKEN_SHAPE_DTYPE, jax.ShapeDtypeStruct(aval.shape, jnp.int16))
        allocate, what = module._allocate_semaphores, (aval.shape,)
        token, place = module.callback.io_callback(allocate, numbers, *core, *what)
        return token, [place]
    utils: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
    params = ctx.interpret_params
    content = utils.get_uninitialized_array(aval.shape, aval.dtype, params.uninitialized_memory)
    if hasattr(module, "_call_allocate_buffer"):
        info = staged.eqn.source_info
        call = functools.partial(module._call_allocate_buffer, source_info=info)
        token, place = call(*core, space, content, params)
    else:  # JAX 0.11.2
        number = (module.TOKEN_SHAPE_DTYPE, jax.ShapeDtypeStruct((), jnp.int16))
        allocate, what = module._allocate_buffer, (module.TPU_MEMORY_SPACE_IDXS[space], content)
        token, place = module.callback.io_callback(allocate, number, *core, *what)
    return token, [place]
