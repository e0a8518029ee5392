"""Kernels for NVIDIA GPUs of the Hopper generation and later, in Mosaic GPU."""

from reference_kernels.mosaic_gpu.ampere_matmul import ampere_matmul
from reference_kernels.mosaic_gpu.blackwell_matmul import blackwell_matmul
from reference_kernels.mosaic_gpu.blackwell_mixed_matmul import blackwell_mixed_matmul
from reference_kernels.mosaic_gpu.blackwell_scaled_matmul import blackwell_scaled_matmul
from reference_kernels.mosaic_gpu.blackwell_sparse_matmul import blackwell_sparse_matmul
from reference_kernels.mosaic_gpu.cluster_split_k import cluster_split_k
from reference_kernels.mosaic_gpu.gather_pages import gather_pages
from reference_kernels.mosaic_gpu.hopper_conv2d import hopper_conv2d
from reference_kernels.mosaic_gpu.hopper_flash_attention import hopper_flash_attention
from reference_kernels.mosaic_gpu.hopper_matmul import hopper_matmul
from reference_kernels.mosaic_gpu.hopper_matmul_persistent import hopper_matmul_persistent
from reference_kernels.mosaic_gpu.hopper_matmul_pipelined import hopper_matmul_pipelined
from reference_kernels.mosaic_gpu.peer_all_gather import peer_all_gather
from reference_kernels.mosaic_gpu.peer_all_gather_matmul import peer_all_gather_matmul
from reference_kernels.mosaic_gpu.peer_all_reduce import peer_all_reduce
from reference_kernels.mosaic_gpu.peer_reduce_scatter import peer_reduce_scatter
from reference_kernels.mosaic_gpu.ragged_dot import ragged_dot
from reference_kernels.mosaic_gpu.ragged_row_sum import ragged_row_sum
from reference_kernels.mosaic_gpu.reduce_columns import reduce_columns
from reference_kernels.mosaic_gpu.reduce_rows import reduce_rows
from reference_kernels.mosaic_gpu.reverse_bits import reverse_bits
from reference_kernels.mosaic_gpu.row_layer_norm import row_layer_norm
from reference_kernels.mosaic_gpu.row_norms import row_rms_norm
from reference_kernels.mosaic_gpu.row_softmax import row_softmax
from reference_kernels.mosaic_gpu.scale_columns import scale_columns
from reference_kernels.mosaic_gpu.split_k import split_k_matmul
from reference_kernels.mosaic_gpu.tma_copy_add import tma_copy_add

__all__ = [
    "ampere_matmul",
    "blackwell_matmul",
    "blackwell_mixed_matmul",
    "blackwell_scaled_matmul",
    "blackwell_sparse_matmul",
    "cluster_split_k",
    "gather_pages",
    "hopper_conv2d",
    "hopper_flash_attention",
    "hopper_matmul",
    "hopper_matmul_persistent",
    "hopper_matmul_pipelined",
    "peer_all_gather",
    "peer_all_gather_matmul",
    "peer_all_reduce",
    "peer_reduce_scatter",
    "ragged_dot",
    "ragged_row_sum",
    "reduce_columns",
    "reduce_rows",
    "reverse_bits",
    "row_layer_norm",
    "row_rms_norm",
    "row_softmax",
    "scale_columns",
    "split_k_matmul",
    "tma_copy_add",
]
