"""The bodies of kernels, followed for all grid points: scalars, edges, and accesses to refs."""
