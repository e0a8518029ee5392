"""Mutants of the norms of ``_norms`` that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Of both norms.
EQUIVALENT = (
    EquivalentMutant(
        operator="arithmetic",
        change="add -> sub",
        source="some_rows(groups * plan.rows + i, sums, 1)",
        reason="of pairs of rows one is left at most: i is 0",
    ),
)
