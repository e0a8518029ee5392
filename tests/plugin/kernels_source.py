"""The kernels of the inner projects: ``conftest.py`` copies this file to them as ``kernels.py``.

All are ``x + y`` on blocks as large as the arrays; each wrong one is wrong in its own way.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P


def _add_body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def _off_body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...] + 1


def add(x: Any, y: Any) -> Any:
    """``x + y``."""
    return pl.pallas_call(_add_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def add_off(x: Any, y: Any) -> Any:
    """``x + y + 1``, where ``x + y`` was meant."""
    return pl.pallas_call(_off_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def add_raises(x: Any, y: Any) -> Any:
    """Refuses its arguments."""
    raise ValueError(f"no block divides {x.shape[0]} rows")


def add_sharded(x: Any, y: Any, *, mesh: Any) -> Any:
    """``x + y``, by rows on the first axis of a mesh."""
    spec = P(mesh.axis_names[0])
    return jax.shard_map(add, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)(
        x, y
    )


@jax.custom_vjp
def add_vjp(x: Any, y: Any) -> Any:
    """``x + y``, with a backward pass of its own."""
    return add(x, y)


add_vjp.defvjp(lambda x, y: (add(x, y), None), lambda _, ct: (ct, ct))


def reference(x: Any, y: Any) -> Any:
    """``x + y`` in jnp."""
    return jnp.add(x, y)


def reference_on_mesh(x: Any, y: Any, *, mesh: Any) -> Any:
    """``x + y`` in jnp, on one device."""
    del mesh
    return jnp.add(x, y)
