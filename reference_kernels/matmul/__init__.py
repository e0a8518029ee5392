"""Products of matrices, from one block of rows times one of columns to a tiled contraction."""

from reference_kernels.matmul.conv2d import conv2d
from reference_kernels.matmul.grouped_matmul import gmm, tgmm
from reference_kernels.matmul.matmul import batched_matmul, matmul
from reference_kernels.matmul.matmul_explicit_mxu import matmul_explicit_mxu
from reference_kernels.matmul.matmul_naive import matmul_naive
from reference_kernels.matmul.matmul_quantized import matmul_quantized

__all__ = [
    "batched_matmul",
    "conv2d",
    "gmm",
    "matmul",
    "matmul_explicit_mxu",
    "matmul_naive",
    "matmul_quantized",
    "tgmm",
]
