"""Kernels of several bodies, and work that passes from SparseCores to the TensorCore."""

from reference_kernels.mpmd.hand_off import hand_off, lookup_matmul
from reference_kernels.mpmd.staged_map import staged_map

__all__ = ["hand_off", "lookup_matmul", "staged_map"]
