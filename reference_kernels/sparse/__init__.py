"""Kernels whose blocks are chosen by data: scalars that are read before the grid starts."""

from reference_kernels.sparse.block_dynamic_slice import block_dynamic_slice

__all__ = ["block_dynamic_slice"]
