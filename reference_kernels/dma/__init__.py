"""Copies between HBM and VMEM by hand, and pipelines that a kernel starts itself."""

from reference_kernels.dma.dma_copy import dma_copy
from reference_kernels.dma.double_buffer import double_buffer
from reference_kernels.dma.emit_pipeline import add_one_pipelined
from reference_kernels.dma.fused_input import multiply_add_one
from reference_kernels.dma.memory_spaces import add_one_from, add_one_from_host, add_one_placed
from reference_kernels.dma.pipeline_state import (
    add_in_place,
    add_one_by_parts,
    add_one_prefetched,
)
from reference_kernels.dma.ragged_copy import ragged_copy

__all__ = [
    "add_in_place",
    "add_one_by_parts",
    "add_one_from",
    "add_one_from_host",
    "add_one_pipelined",
    "add_one_placed",
    "add_one_prefetched",
    "dma_copy",
    "double_buffer",
    "multiply_add_one",
    "ragged_copy",
]
