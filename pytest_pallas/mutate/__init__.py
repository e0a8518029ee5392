"""Mutants of kernels: what a mistake makes of the traced program. Nothing is run here."""

from __future__ import annotations

from pytest_pallas.mutate.model import Change as Change
from pytest_pallas.mutate.model import EquationSite as EquationSite
from pytest_pallas.mutate.model import KernelSite as KernelSite
from pytest_pallas.mutate.model import Operator as Operator
from pytest_pallas.mutate.model import Replacement as Replacement
from pytest_pallas.mutate.model import added_operators as added_operators
from pytest_pallas.mutate.model import call_operator as call_operator
from pytest_pallas.mutate.model import declared_operators as declared_operators
from pytest_pallas.mutate.model import known_operators as known_operators
from pytest_pallas.mutate.model import operator as operator
from pytest_pallas.mutate.programs import Mutant as Mutant
from pytest_pallas.mutate.programs import mutants_of as mutants_of
from pytest_pallas.mutate.programs import mutated as mutated
