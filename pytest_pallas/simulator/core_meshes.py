"""The meshes of cores that the bodies of a kernel run on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.errors import MissingRuleError


@dataclass(frozen=True, slots=True)
class CoreMesh:
    """A mesh of cores that a body of a kernel runs on.

    Attributes:
      kind: ``"tc"``, ``"sc_scalar_subcore"`` or ``"sc_vector_subcore"``.
      shape: sizes of its axes, by name.
    """

    kind: str
    shape: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many cores it has."""
        return math.prod(self.shape.values())

    @property
    def points(self) -> Sequence[Mapping[str, int]]:
        """The index of each core along each axis."""
        sizes = [range(size) for size in self.shape.values()]
        return [dict(zip(self.shape, point, strict=True)) for point in itertools.product(*sizes)]


def kind_of_cores(mesh: Any) -> str | None:
    """The kind of cores of a mesh of JAX, or None if they are none of a TPU."""
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas import tpu_sc as plsc

    kinds: Mapping[type, str] = {
        pltpu.TensorCoreMesh: "tc",
        plsc.ScalarSubcoreMesh: "sc_scalar_subcore",
        plsc.VectorSubcoreMesh: "sc_vector_subcore",
    }
    return kinds.get(type(mesh))


def core_meshes(meshes: Sequence[Any]) -> list[CoreMesh]:
    """The meshes of an ``mpmd_map``.

    Raises:
      MissingRuleError: one of them is of a kind that the simulator does not know.
    """
    found: list[CoreMesh] = []
    for mesh in meshes:
        kind = kind_of_cores(mesh)
        if kind is None:
            raise MissingRuleError(f"the simulator does not simulate a {type(mesh).__name__}")
        found.append(CoreMesh(kind, dict(mesh.shape)))
    return found
