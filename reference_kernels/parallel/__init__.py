"""Kernels on several devices: single-device kernels in ``shard_map``, and ring attention."""

from reference_kernels.parallel.ring_attention import ring_attention, ring_attention_on_mesh
from reference_kernels.parallel.sharded_attention import gathered_attention, sharded_attention
from reference_kernels.parallel.sharded_softmax import (
    softmax_by_columns,
    softmax_by_rows,
    softmax_piece,
)

__all__ = [
    "gathered_attention",
    "ring_attention",
    "ring_attention_on_mesh",
    "sharded_attention",
    "softmax_by_columns",
    "softmax_by_rows",
    "softmax_piece",
]
