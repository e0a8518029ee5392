"""Communication between chips by remote DMA, inside ``jax.shard_map``.

A kernel has two functions: one that is called with a shard, inside ``jax.shard_map``, like its twin
in ``jax.lax``, and one ``_on_mesh`` that takes the shards of all devices and a mesh.
"""

from reference_kernels.collectives.all_gather import all_gather, all_gather_on_mesh
from reference_kernels.collectives.all_reduce import all_reduce, all_reduce_on_mesh
from reference_kernels.collectives.all_to_all import all_to_all, all_to_all_on_mesh
from reference_kernels.collectives.ppermute import ppermute, ppermute_on_mesh
from reference_kernels.collectives.ragged_all_to_all import (
    ragged_all_to_all,
    ragged_all_to_all_on_mesh,
)
from reference_kernels.collectives.reduce_scatter import reduce_scatter, reduce_scatter_on_mesh
from reference_kernels.collectives.right_permute import right_permute, right_permute_on_mesh

__all__ = [
    "all_gather",
    "all_gather_on_mesh",
    "all_reduce",
    "all_reduce_on_mesh",
    "all_to_all",
    "all_to_all_on_mesh",
    "ppermute",
    "ppermute_on_mesh",
    "ragged_all_to_all",
    "ragged_all_to_all_on_mesh",
    "reduce_scatter",
    "reduce_scatter_on_mesh",
    "right_permute",
    "right_permute_on_mesh",
]
