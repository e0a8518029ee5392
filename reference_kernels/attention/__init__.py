"""Attention: ``softmax(q k^T) v`` without its matrix of scores in memory."""

from reference_kernels.attention.flash_attention import flash_attention
from reference_kernels.attention.grouped_query import (
    grouped_query_attention,
    grouped_query_attention_by_vmap,
    mqa,
)
from reference_kernels.attention.kv_update import update_kv_pages
from reference_kernels.attention.multi_head import batched_mha, mha
from reference_kernels.attention.paged_attention import paged_attention
from reference_kernels.attention.ragged_paged_attention import ragged_paged_attention
from reference_kernels.attention.splash_attention import ArrayMask, Mask, splash_attention

__all__ = [
    "ArrayMask",
    "Mask",
    "batched_mha",
    "flash_attention",
    "grouped_query_attention",
    "grouped_query_attention_by_vmap",
    "mha",
    "mqa",
    "paged_attention",
    "ragged_paged_attention",
    "splash_attention",
    "update_kv_pages",
]
