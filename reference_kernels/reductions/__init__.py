"""Reductions over a dimension of an array."""

from reference_kernels.reductions.softmax import softmax

__all__ = ["softmax"]
