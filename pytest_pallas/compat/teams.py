"""Cores of one kernel, in teams: a team runs one body, and its cores are those of one mesh.

A kernel of several bodies (``pl.kernel(body=[...], mesh=[...])``) has a team for each. All cores
have numbers, one team after the other, in the order of the meshes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: The axis of the grid that is one program for each core of all teams.
CORES = "pytest_pallas_cores"


@dataclass(frozen=True)
class Team:
    """The cores of one mesh: numbers ``first`` to ``first + size - 1``.

    Attributes:
      mesh: of scalar or vector subcores, or of TensorCores.
      first: number of its first core.
    """

    mesh: Any
    first: int

    @property
    def shape(self) -> Mapping[str, int]:
        """Sizes of the axes of the mesh."""
        return dict(self.mesh.shape)

    @property
    def size(self) -> int:
        """How many cores it has."""
        return _product(self.shape.values())

    @property
    def subcores(self) -> int:
        """How many of its cores are on one SparseCore."""
        return getattr(self.mesh, "num_subcores", 1)

    def __contains__(self, core: int) -> bool:
        return self.first <= core < self.first + self.size

    def position(self, core: Any, axis_name: str) -> Any:
        """Where a core, by its number (which may be traced), is on an axis."""
        sizes = list(self.shape.values())
        axis = list(self.shape).index(axis_name)
        return (core - self.first) // _product(sizes[axis + 1 :]) % sizes[axis]

    def core(self, positions: Mapping[str, Any]) -> Any:
        """The number of the core at these positions, one for each axis."""
        number: Any = 0
        for name, size in self.shape.items():
            number = number * size + positions[name]
        return self.first + number


@dataclass(frozen=True)
class Teams:
    """All cores of a kernel. It stands for its meshes where JAX wants one mesh.

    Attributes:
      meshes: one for each body.
    """

    meshes: tuple[Any, ...]

    @cached_property
    def all(self) -> tuple[Team, ...]:
        """The teams, in the order of the meshes."""
        sizes = [_product(mesh.shape.values()) for mesh in self.meshes]
        firsts = itertools.accumulate(sizes[:-1], initial=0)
        return tuple(Team(mesh, first) for mesh, first in zip(self.meshes, firsts, strict=True))

    @property
    def size(self) -> int:
        """How many cores there are."""
        return sum(team.size for team in self.all)

    @property
    def shape(self) -> Mapping[str, int]:
        """One axis, for a grid of one program for each core."""
        return {CORES: self.size}

    @property
    def default_memory_space(self) -> Any:
        """Where operands are that say nothing."""
        return self.meshes[0].default_memory_space

    @property
    def dimension_semantics(self) -> Sequence[str]:
        """Of that grid."""
        return ("parallel",)

    def of(self, mesh: Any) -> Team | None:
        """The team of a mesh, if the kernel has it."""
        return next((team for team in self.all if team.mesh == mesh), None)

    def sparse_core(self, core: int) -> tuple[int, ...]:
        """The vector subcores (if there are none: the scalar one) beside a core, itself included.

        They share memory (``VMEM_SHARED``), and the first of them owns it here.
        """
        own = next(team for team in self.all if core in team)
        number = (core - own.first) // own.subcores
        vectors = next((team for team in self.all if hasattr(team.mesh, "num_subcores")), own)
        first = vectors.first + number * vectors.subcores
        return tuple(range(first, first + vectors.subcores))


def with_fields(instance: Any, **more: Any) -> Any:
    """A dataclass, and more fields, which ``dataclasses.replace`` keeps."""
    frozen = instance.__dataclass_params__.frozen
    extended: Any = dataclasses.make_dataclass(
        type(instance).__name__, more, bases=(type(instance),), frozen=frozen, kw_only=True
    )
    known = {each.name: getattr(instance, each.name) for each in dataclasses.fields(instance)}
    return extended(**known, **more)


def _product(sizes: Any) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
