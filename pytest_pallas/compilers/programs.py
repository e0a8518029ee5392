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
    mesh = Mesh(np.array(devices), ("_d",))
    replicated = NamedSharding(mesh, PartitionSpec())
    shardings = program.in_shardings_jax(mesh)
    avals = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding or replicated)
        for aval, sharding in zip(program.in_avals, shardings, strict=True)
    ]
    # Only an argument tells jit which devices are meant, and a program may have none.
    somewhere = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)

    def call(_: Any, args: Any, options: Any) -> Any:
        return program.call(*args, **options)

    # It is not used, and must not be dropped.
    jitted = jax.jit(call, keep_unused=True)
    return jitted.lower(somewhere, *jax.tree.unflatten(program.in_tree, avals)).compile()
