"""Kernels whose blocks are chosen by data: scalars that are read before the grid starts."""

from reference_kernels.sparse.block_dynamic_slice import block_dynamic_slice, tile_dynamic_slice
from reference_kernels.sparse.block_sparse_matmul import dsd, sdd
from reference_kernels.sparse.fused_gather import fused_gather
from reference_kernels.sparse.halo_stencil import halo_stencil, halo_stencil_padded

__all__ = [
    "block_dynamic_slice",
    "dsd",
    "fused_gather",
    "halo_stencil",
    "halo_stencil_padded",
    "sdd",
    "tile_dynamic_slice",
]
