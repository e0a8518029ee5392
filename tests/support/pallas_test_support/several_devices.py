"""Kernels over several devices: meshes, what ``jax.lax`` says, and what a kernel sends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from pallas_sim.compat.jaxprs import sub_jaxprs
from pytest_pallas.grid.kernel_calls import kernel_calls
from reference_kernels import _mesh


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    """A mesh of simulated devices, by the sizes of its axes."""
    devices = np.array(jax.devices("cpu")[: math.prod(axes.values())])
    return jax.sharding.Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    """Whole numbers, all different as far as the dtype has so many."""
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def on_each(function: Callable[..., Any], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """``function`` of one shard as a function of the shards of all devices."""
    return lambda x: _mesh.on_each_device(function, mesh, x=x)


def same_bits(left: Any, right: Any) -> None:
    """Equal in dtype, shape and every bit."""
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


def five_times(step: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A kernel of one shard called twice in a row, and three times in a loop of XLA."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, y: step(y), step(step(x)))

    return run


def operations(function: Callable[..., Any], *args: Any) -> list[str]:
    """What the kernels of a program do, in the order of their code.

    A DMA to another device is called ``send`` and the start of one within a device ``dma_start``.
    """
    traced = jax.make_jaxpr(function)(*args)
    return [name for call in kernel_calls(traced) for name in _names(call.eqn)]


def _names(eqn: Any) -> Iterator[str]:
    for body in sub_jaxprs(eqn):
        for inner in body.eqns:
            yield "send" if _is_send(inner) else inner.primitive.name
            yield from _names(inner)


def _is_send(eqn: Any) -> bool:
    if eqn.primitive.name != "dma_start":
        return False
    *_, device = jax.tree.unflatten(eqn.params["tree"], eqn.invars)
    return device is not None
