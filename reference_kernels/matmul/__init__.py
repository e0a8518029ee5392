"""Products of matrices, from one block of rows times one of columns to a tiled contraction."""

from reference_kernels.matmul.matmul import matmul
from reference_kernels.matmul.matmul_naive import matmul_naive

__all__ = ["matmul", "matmul_naive"]
