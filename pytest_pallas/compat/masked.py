"""Private names of JAX: what a masked load gives where the mask does not hold.

Nothing is promised there if the load names no ``other``. The portable interpreter ignores the mask
then and loads everything, so that a kernel that uses those elements is right in it alone.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def masked_loads_unspecified() -> Generator[None]:
    """Let the portable interpreter load NaN where a mask does not hold, of integers the least."""
    import jax.numpy as jnp

    discharge: Any = importlib.import_module("jax._src.state.discharge")
    load: Any = importlib.import_module("jax._src.pallas.primitives").load_p
    rules = discharge._discharge_rules
    rule = rules[load]

    def loaded(ctx: Any, *args: Any, args_tree: Any, **params: Any) -> Any:
        unchanged, out = rule(ctx, *args, args_tree=args_tree, **params)
        _, _, mask, other = args_tree.unflatten(args)
        if mask is not None and other is None:
            out = jnp.where(mask, out, _unspecified(out.dtype))
        return unchanged, out

    rules[load] = loaded
    try:
        yield
    finally:
        rules[load] = rule


def _unspecified(dtype: Any) -> Any:
    import jax.numpy as jnp

    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.array(jnp.nan, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.array(jnp.iinfo(dtype).min, dtype)
    return jnp.ones((), dtype)
