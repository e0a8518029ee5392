"""Mutants of the norms of ``_norms`` that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant
from reference_kernels.mosaic_gpu._rows_spec import TAIL_BY_ALL

#: Of both norms.
EQUIVALENT = (
    TAIL_BY_ALL,
    EquivalentMutant(
        operator="arithmetic",
        change="add -> sub",
        source="some_rows(groups * plan.rows + i, sums, 1)",
        reason="of pairs of rows one is left at most: i is 0",
    ),
)
