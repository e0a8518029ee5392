"""Kernels that no compiler takes, or that some chips' compilers do not take, and why.

Interpreters run nearly all of them. Each is refused for its own reason only: with what the comment
in it names put right, it compiles. One module a class of reasons; each ends with its cases.
"""

from __future__ import annotations

from uncompilable import (
    blocks,
    dtypes,
    memory,
    mosaic_gpu,
    operations,
    places,
    sparse_core,
    triton,
)
from uncompilable.common import GPUS, TPUS, Case

__all__ = ["CASES", "GPUS", "TPUS", "Case"]

CASES: tuple[Case, ...] = (
    *blocks.CASES,
    *memory.CASES,
    *operations.CASES,
    *places.CASES,
    *dtypes.CASES,
    *sparse_core.CASES,
    *triton.CASES,
    *mosaic_gpu.CASES,
)
