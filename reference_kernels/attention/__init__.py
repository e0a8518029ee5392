"""Attention: ``softmax(q k^T) v`` without its matrix of scores in memory."""

from reference_kernels.attention.flash_attention import flash_attention
from reference_kernels.attention.multi_head import batched_mha, mha

__all__ = ["batched_mha", "flash_attention", "mha"]
