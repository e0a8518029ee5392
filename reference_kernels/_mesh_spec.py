"""What specs of kernels over devices share: meshes, and mutants that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: One axis, of which each example draws the size; one device is a ring, too.
ONE_AXIS = {"x": (1, 2, 3, 4, 6, 8)}

#: Of specs whose devices all enter together.
ENTERED = EquivalentMutant(
    operator="arithmetic",
    change="add -> sub",
    source="jax.lax.rem(jax.lax.axis_index(axis_name) + steps + size, size)",
    reason="all others are told, in the other direction around the ring",
)
