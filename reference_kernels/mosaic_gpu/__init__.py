"""Kernels for NVIDIA GPUs of the Hopper generation and later, in Mosaic GPU."""

from reference_kernels.mosaic_gpu.tma_copy_add import tma_copy_add

__all__ = ["tma_copy_add"]
