"""Mutants of what ``_mesh`` has that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Of specs whose devices all enter together.
ENTERED = EquivalentMutant(
    operator="arithmetic",
    change="add -> sub",
    source="jax.lax.rem(jax.lax.axis_index(axis_name) + steps + size, size)",
    reason="all others are told, in the other direction around the ring",
)
