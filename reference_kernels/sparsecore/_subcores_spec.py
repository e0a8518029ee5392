"""Specs of ``_subcores``."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Of specs whose kernels call ``clear``.
CLEARED = EquivalentMutant(
    operator="store",
    change="the next slot",
    source="ref[i, pl.ds(j, width)] = zeros",
    reason="every row is cleared, in another order",
)
