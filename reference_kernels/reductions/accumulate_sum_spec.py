"""Specs of ``accumulate_sum``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import REVISITS, without
from reference_kernels.reductions.accumulate_sum import (
    accumulate_sum,
    accumulate_sum_by_rows,
    reference,
)

_BLOCKS = {"block_m": 16, "block_n": 128}
_RELATIONS = (Linear(0), Permuted({0: 0}), Permuted({0: 1}, output=0))
_TYPICAL = pst.shaped("m n", dtype="float32", dims={"m": 8192, "n": 4096})

SPEC = KernelSpec(
    name="accumulate_sum",
    kernel=accumulate_sum,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=pst.floats("bfloat16", "float32"), around={"m": 16, "n": 128}),
        tuning=_BLOCKS,
    ),
    exact=True,
    relations=_RELATIONS,
    typical=(_TYPICAL,),
)

SPEC_BY_ROWS = KernelSpec(
    name="accumulate_sum_by_rows",
    kernel=accumulate_sum_by_rows,
    reference=reference,
    inputs=pst.arguments(
        # Two blocks at least in both directions, so that every draw visits blocks again.
        pst.arrays(
            "m n",
            dtype=pst.dtypes("float32", "bfloat16", "int32"),
            dims={"m": [32, 33, 49], "n": [129, 256, 257]},
            # Sums of 33 rows exceed 256, from where on bfloat16 does not hold every integer.
            values=("normal", "rows"),
        ),
        tuning=_BLOCKS,
    ),
    exact=True,
    relations=_RELATIONS,
    typical=(_TYPICAL,),
    backends=without(REVISITS),
)
