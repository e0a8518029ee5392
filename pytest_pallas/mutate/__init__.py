"""Mutants of kernels: what a mistake makes of the traced program. Nothing is run here."""

from __future__ import annotations

from pytest_pallas.mutate.model import (
    Change,
    EquationSite,
    KernelSite,
    Operator,
    Replacement,
    added_operators,
    call_operator,
    declared_operators,
    known_operators,
    operator,
)
from pytest_pallas.mutate.programs import Mutant, mutants_of, mutated

__all__ = [
    "Change",
    "EquationSite",
    "KernelSite",
    "Mutant",
    "Operator",
    "Replacement",
    "added_operators",
    "call_operator",
    "declared_operators",
    "known_operators",
    "mutants_of",
    "mutated",
    "operator",
]
