"""From a serialized program to an executable for devices that are not there; in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def compile_program(module: bytes, devices: Sequence[Any]) -> Any:
    """Compile what ``jax.export`` serialized.

    Args:
      module: the serialized program.
      devices: the devices to compile for, as many as the program runs on.

    Returns:
      The ``jax.stages.Compiled``.

    Raises:
      Exception: what the compiler says.
    """
    program = export.deserialize(bytearray(module))
    replicated = NamedSharding(_mesh(devices), PartitionSpec())
    # Those of the export name the axes of its mesh, and no devices.
    shardings = [
        replicated if sharding is None else _on(devices, sharding)
        for sharding in program.in_shardings_jax(None)
    ]
    avals = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(program.in_avals, shardings, strict=True)
    ]
    # Only by an argument jit knows which devices are meant, and a program may have none.
    somewhere = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)

    def call(_: Any, args: Any, options: Any) -> Any:
        return program.call(*args, **options)

    # It is not used, and must not be dropped.
    jitted = jax.jit(call, keep_unused=True)
    return jitted.lower(somewhere, *jax.tree.unflatten(program.in_tree, avals)).compile()


def _mesh(devices: Sequence[Any]) -> Mesh:
    """A mesh over devices with axes as small as can be.

    ``compile`` describes the outputs' shardings by the axes of the first argument's mesh, and fails
    if an axis is larger than what an output is divided by.
    """
    sizes: list[int] = []
    rest = len(devices)
    while rest > 1:
        sizes.append(next(size for size in range(2, rest + 1) if rest % size == 0))
        rest //= sizes[-1]
    axes = tuple(f"_d{number}" for number in range(len(sizes)))
    return Mesh(np.array(devices).reshape(sizes), axes)


def _on(devices: Sequence[Any], sharding: Any) -> NamedSharding:
    """A ``NamedSharding`` of an abstract mesh, on devices."""
    axes = sharding.mesh
    grid = np.array(devices).reshape(axes.axis_sizes)
    return sharding.update(mesh=Mesh(grid, axes.axis_names, axis_types=axes.axis_types))
