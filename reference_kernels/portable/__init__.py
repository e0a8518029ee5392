"""Kernels that are written once for TPUs and GPUs, with ``pl`` alone.

On a GPU, Pallas takes them through Triton. JAX 0.12 warns that this way will be removed: new GPU
kernels belong in Mosaic GPU, as in ``mosaic_gpu``.
"""

from reference_kernels.portable.add import portable_add
from reference_kernels.portable.flash_attention import portable_flash_attention
from reference_kernels.portable.matmul import portable_matmul
from reference_kernels.portable.rows import (
    portable_layer_norm,
    portable_rms_norm,
    portable_softmax,
)

__all__ = [
    "portable_add",
    "portable_flash_attention",
    "portable_layer_norm",
    "portable_matmul",
    "portable_rms_norm",
    "portable_softmax",
]
