"""Mutants of kernels: what a mistake makes of the traced program. Nothing is run here."""

from __future__ import annotations

import warnings
from typing import Any

from pytest_pallas.mutation.declaring import call_operator, operator
from pytest_pallas.mutation.model import (
    Change,
    EquationSite,
    KernelSite,
    Mutant,
    Operator,
    Replacement,
)
from pytest_pallas.mutation.operators import added_operators, declared_operators, known_operators
from pytest_pallas.mutation.programs import mutants_of, mutated

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

#: Names before version 0.1; they go with version 0.2.
_RENAMED = {"At": EquationSite, "Kernel": KernelSite, "New": Replacement}


def __getattr__(name: str) -> Any:
    """A class under its old name."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _RENAMED[name]
    warnings.warn(
        f"{__name__}.{name} is {__name__}.{found.__name__} now", DeprecationWarning, stacklevel=2
    )
    return found
