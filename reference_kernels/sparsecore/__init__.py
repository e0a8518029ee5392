"""Kernels of SparseCores, the units of v5p, v6e and tpu7x for what is indexed and irregular."""

from reference_kernels.sparsecore.compact import compact, expand
from reference_kernels.sparsecore.gather import gather, gather_pipelined
from reference_kernels.sparsecore.gather_sum import gather_sum
from reference_kernels.sparsecore.histogram import histogram
from reference_kernels.sparsecore.packed import abs_packed, add_packed
from reference_kernels.sparsecore.pick import pick
from reference_kernels.sparsecore.running_max import running_max
from reference_kernels.sparsecore.scalar_cumsum import scalar_cumsum
from reference_kernels.sparsecore.scatter_add import scatter_add
from reference_kernels.sparsecore.top_k import top_k
from reference_kernels.sparsecore.vector_map import vector_map

__all__ = [
    "abs_packed",
    "add_packed",
    "compact",
    "expand",
    "gather",
    "gather_pipelined",
    "gather_sum",
    "histogram",
    "pick",
    "running_max",
    "scalar_cumsum",
    "scatter_add",
    "top_k",
    "vector_map",
]
