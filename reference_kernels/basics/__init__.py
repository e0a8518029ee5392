"""The first kernels: one array whole, one array in blocks, and a grid that knows where it is."""

from reference_kernels.basics.add_vectors import add_blocks, add_vectors
from reference_kernels.basics.iota import iota

__all__ = ["add_blocks", "add_vectors", "iota"]
