"""The first kernels: arrays whole and in blocks, a grid that knows its place, bits and layouts."""

from reference_kernels.basics.add_vectors import add_blocks, add_vectors
from reference_kernels.basics.bitcast import as_words, from_words, sort_keys
from reference_kernels.basics.debug_probe import debug_probe, timing_probe
from reference_kernels.basics.fp6 import dequantize_fp6, split_fp6
from reference_kernels.basics.heads import merge_heads, split_heads, transpose
from reference_kernels.basics.iota import iota
from reference_kernels.basics.masked import argmax, load_where
from reference_kernels.basics.pack import pack, unpack
from reference_kernels.basics.reciprocal import reciprocal
from reference_kernels.basics.roll import roll, skew
from reference_kernels.basics.stochastic_round import stochastic_round, stochastic_round_by_hand

__all__ = [
    "add_blocks",
    "add_vectors",
    "argmax",
    "as_words",
    "debug_probe",
    "dequantize_fp6",
    "from_words",
    "iota",
    "load_where",
    "merge_heads",
    "pack",
    "reciprocal",
    "roll",
    "skew",
    "sort_keys",
    "split_fp6",
    "split_heads",
    "stochastic_round",
    "stochastic_round_by_hand",
    "timing_probe",
    "transpose",
    "unpack",
]
