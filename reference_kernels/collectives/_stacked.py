"""Operands of all devices in one array: along an axis of the mesh, and back.

For references, which see all shards at once; kernels see one.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def by_axis(x: jax.Array, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """``(devices, ...)`` as ``(size of the axis, other devices, ...)``."""
    sizes = tuple(mesh.shape.values())
    place = mesh.axis_names.index(axis_name)
    grid = jnp.moveaxis(x.reshape(*sizes, *x.shape[1:]), place, 0)
    return grid.reshape(sizes[place], -1, *x.shape[1:])


def by_device(grid: jax.Array, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """The inverse of ``by_axis``; the shards may have another shape by now."""
    sizes = tuple(mesh.shape.values())
    place = mesh.axis_names.index(axis_name)
    others = sizes[:place] + sizes[place + 1 :]
    grid = grid.reshape(sizes[place], *others, *grid.shape[2:])
    grid = jnp.moveaxis(grid, 0, place)
    return grid.reshape(math.prod(sizes), *grid.shape[len(sizes) :])
