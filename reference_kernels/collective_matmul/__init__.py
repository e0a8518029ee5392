"""Products of matrices that are spread over devices, inside ``jax.shard_map``."""

from reference_kernels.collective_matmul.all_gather_matmul import (
    all_gather_matmul,
    all_gather_matmul_on_mesh,
)
from reference_kernels.collective_matmul.matmul_reduce_scatter import (
    matmul_reduce_scatter,
    matmul_reduce_scatter_on_mesh,
)
from reference_kernels.collective_matmul.sharded_matmul import sharded_matmul

__all__ = [
    "all_gather_matmul",
    "all_gather_matmul_on_mesh",
    "matmul_reduce_scatter",
    "matmul_reduce_scatter_on_mesh",
    "sharded_matmul",
]
