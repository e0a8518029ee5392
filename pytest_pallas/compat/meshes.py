"""Private names of JAX: the cores, blocks and threads that a kernel runs on.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``mpmd_map`` and its meshes are documented.
Probe: ``tests/unit/compat/test_meshes.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.errors import MissingRuleError


@dataclass(frozen=True, slots=True)
class BlockMesh:
    """The grid of a Mosaic GPU kernel.

    Attributes:
      grid: names and sizes of its axes: of clusters, where a kernel has them.
      cluster: names and sizes of the axes of a cluster of blocks.
      threads: name and number of the warpgroups of a block, or None for one that has no name.
    """

    grid: tuple[tuple[Any, int], ...]
    cluster: tuple[tuple[Any, int], ...]
    threads: tuple[Any, int] | None

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return math.prod(size for _, size in self.cluster)

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a block."""
        return 1 if self.threads is None else self.threads[1]


def block_mesh(meshes: Sequence[Any]) -> BlockMesh | None:
    """The grid that a ``mpmd_map`` runs on, or None where that is no GPU's."""
    mesh = meshes[0]
    if type(mesh).__name__ != "Mesh" or not hasattr(mesh, "cluster_names"):
        return None
    return BlockMesh(
        tuple(zip(mesh.grid_names, mesh.grid, strict=True)),
        tuple(zip(mesh.cluster_names, mesh.cluster, strict=True)),
        None if mesh.num_threads is None else (mesh.thread_name, mesh.num_threads),
    )


def warp_axis(meshes: Sequence[Any]) -> tuple[Any, int] | None:
    """Name and size of the axis of warps that a ``mpmd_map`` divides a warpgroup into, or None."""
    mesh = meshes[0]
    if type(mesh).__name__ != "WarpMesh":
        return None
    ((name, size),) = mesh.shape.items()
    return name, size


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


def core_meshes(meshes: Sequence[Any]) -> list[CoreMesh]:
    """The meshes of an ``mpmd_map``.

    Raises:
      MissingRuleError: one of them is of a kind that the simulator does not know.
    """
    kinds = {
        "TensorCoreMesh": "tc",
        "ScalarSubcoreMesh": "sc_scalar_subcore",
        "VectorSubcoreMesh": "sc_vector_subcore",
    }
    for mesh in meshes:
        if type(mesh).__name__ not in kinds:
            raise MissingRuleError(f"the simulator does not simulate a {type(mesh).__name__}")
    return [CoreMesh(kinds[type(mesh).__name__], dict(mesh.shape)) for mesh in meshes]
