"""Reductions over a dimension of an array."""

from reference_kernels.reductions.accumulate_sum import accumulate_sum, accumulate_sum_by_rows
from reference_kernels.reductions.layer_norm import layer_norm
from reference_kernels.reductions.rms_norm import rms_norm
from reference_kernels.reductions.softmax import softmax

__all__ = ["accumulate_sum", "accumulate_sum_by_rows", "layer_norm", "rms_norm", "softmax"]
