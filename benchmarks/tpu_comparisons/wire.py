"""What a kernel over several devices sends, counted in the traced program."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from pytest_pallas.grid.kernel_calls import KernelCall


def mesh(**axes: int) -> jax.sharding.Mesh:
    """A mesh of simulated devices, by the sizes of its axes; ``tpu_cost`` simulates eight."""
    devices = np.array(jax.devices("cpu")[: math.prod(axes.values())])
    return jax.sharding.Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def wire_bytes(kernels: Iterable[KernelCall]) -> int:
    """Bytes that one device starts remote DMAs of, in all kernels of a program.

    They are counted where a copy has a device id, times the rounds of the loops and grids around
    it. Of the branches of a condition the one that sends most counts, each time: what is sent
    under ``pl.when`` in a loop counts in every round.

    Raises:
      ValueError: how much is sent is known at run time only; the row must say it.
    """
    return sum(_kernel_bytes(kernel.eqn) for kernel in kernels)


def _kernel_bytes(eqn: Any) -> int:
    grid = eqn.params["grid_mapping"].grid if "grid_mapping" in eqn.params else ()
    return math.prod(grid) * sum(map(_sent, _bodies(eqn)))


def _sent(jaxpr: Any) -> int:
    return sum(_sent_by(eqn) for eqn in jaxpr.eqns)


def _sent_by(eqn: Any) -> int:
    name = eqn.primitive.name
    if name == "dma_start":
        avals = [variable.aval for variable in eqn.invars]
        source, _, _, _, device = jax.tree.unflatten(eqn.params["tree"], avals)
        if device is None:
            return 0
        if not all(isinstance(size, int) for size in source.shape):
            raise ValueError(f"a copy of {source.shape} to another device: give Side.wire_bytes")
        return math.prod(source.shape) * source.dtype.itemsize
    inner = [_sent(body) for body in _bodies(eqn)]
    if name == "scan":
        return eqn.params["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    if name == "while" and sum(inner):
        raise ValueError("copies to other devices in a loop of unknown length: give wire_bytes")
    return sum(inner)


def _bodies(eqn: Any) -> list[Any]:
    """The jaxprs in the parameters of an equation."""
    values = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
    return [getattr(value, "jaxpr", value) for value in values if hasattr(value, "eqns")]
