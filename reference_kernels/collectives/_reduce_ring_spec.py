"""Specs of ``_reduce_ring``."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: Mutants of them that are no mistakes.
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
