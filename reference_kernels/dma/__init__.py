"""Explicit copies between HBM and VMEM: what Pallas' block pipeline does for other kernels."""

from reference_kernels.dma.dma_copy import dma_copy
from reference_kernels.dma.double_buffer import double_buffer

__all__ = ["dma_copy", "double_buffer"]
