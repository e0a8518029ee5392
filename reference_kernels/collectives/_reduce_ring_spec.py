"""What specs of rings share: the values that they draw, and mutants that are no mistakes."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Sums of "full" ones have more bits than bfloat16.
VALUES = ("integers", "full", "normal")

#: Of every kernel that reduces around a ring.
EQUIVALENT = (
    EquivalentMutant(
        operator="guard",
        change="always",
        source="pl.when(start)(lambda: _mesh.enter(",
        reason="all devices run the same programs, and wait for each other before each",
    ),
    EquivalentMutant(
        operator="mask",
        change="and -> or",
        source="start = functools.reduce(lambda a, b: a & b, [",
        reason="likewise, before some of them",
    ),
    EquivalentMutant(
        operator="guard",
        change="always",
        source="@pl.when(first)",
        reason="in all other turns the next lines write the same place again",
    ),
)
