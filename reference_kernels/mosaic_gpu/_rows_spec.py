"""Mutants of the kernels of ``_rows`` that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Of every kernel that is made here.
TAIL_BY_ALL = EquivalentMutant(
    operator="guard",
    change="always",
    source="pl.when(block == full)",
    reason="every block writes the same to the rows that are left, from rows that nobody writes",
)
