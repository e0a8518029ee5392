"""Kernels for NVIDIA GPUs of the Hopper generation and later, in Mosaic GPU."""

from reference_kernels.mosaic_gpu.ampere_matmul import ampere_matmul
from reference_kernels.mosaic_gpu.blackwell_matmul import blackwell_matmul
from reference_kernels.mosaic_gpu.blackwell_scaled_matmul import blackwell_scaled_matmul
from reference_kernels.mosaic_gpu.blackwell_sparse_matmul import blackwell_sparse_matmul
from reference_kernels.mosaic_gpu.hopper_conv2d import hopper_conv2d
from reference_kernels.mosaic_gpu.hopper_flash_attention import hopper_flash_attention
from reference_kernels.mosaic_gpu.hopper_matmul import hopper_matmul
from reference_kernels.mosaic_gpu.hopper_matmul_persistent import hopper_matmul_persistent
from reference_kernels.mosaic_gpu.peer_all_gather import peer_all_gather
from reference_kernels.mosaic_gpu.peer_all_gather_matmul import peer_all_gather_matmul
from reference_kernels.mosaic_gpu.peer_reduce_scatter import peer_reduce_scatter
from reference_kernels.mosaic_gpu.ragged_dot import ragged_dot
from reference_kernels.mosaic_gpu.row_norms import row_rms_norm
from reference_kernels.mosaic_gpu.row_softmax import row_softmax
from reference_kernels.mosaic_gpu.split_k import split_k_matmul
from reference_kernels.mosaic_gpu.tma_copy_add import tma_copy_add

__all__ = [
    "ampere_matmul",
    "blackwell_matmul",
    "blackwell_scaled_matmul",
    "blackwell_sparse_matmul",
    "hopper_conv2d",
    "hopper_flash_attention",
    "hopper_matmul",
    "hopper_matmul_persistent",
    "peer_all_gather",
    "peer_all_gather_matmul",
    "peer_reduce_scatter",
    "ragged_dot",
    "row_rms_norm",
    "row_softmax",
    "split_k_matmul",
    "tma_copy_add",
]
