"""The grid of a Mosaic GPU kernel: its clusters, blocks, warpgroups and warps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.simulator.concurrency.launches import kind_of_cores


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
    if not _is_of_plgpu(mesh, "Mesh"):
        return None
    return BlockMesh(
        tuple(zip(mesh.grid_names, mesh.grid, strict=True)),
        tuple(zip(mesh.cluster_names, mesh.cluster, strict=True)),
        None if mesh.num_threads is None else (mesh.thread_name, mesh.num_threads),
    )


def warp_axis(meshes: Sequence[Any]) -> tuple[Any, int] | None:
    """Name and size of the axis of warps that a ``mpmd_map`` divides a warpgroup into, or None."""
    mesh = meshes[0]
    if not _is_of_plgpu(mesh, "WarpMesh"):
        return None
    ((name, size),) = mesh.shape.items()
    return name, size


def _is_of_plgpu(mesh: Any, name: str) -> bool:
    """Whether a mesh is of this class of ``plgpu``, which is not imported for a TPU's meshes."""
    if kind_of_cores(mesh) is not None:
        return False
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return isinstance(mesh, getattr(plgpu, name))
