"""Mutants of kernels: what a mistake makes of the traced program. Nothing is run here."""

from __future__ import annotations

from pytest_pallas.mutation.model import Mutant
from pytest_pallas.mutation.operators import declared_operators
from pytest_pallas.mutation.programs import mutants_of, mutated

__all__ = ["Mutant", "declared_operators", "mutants_of", "mutated"]
