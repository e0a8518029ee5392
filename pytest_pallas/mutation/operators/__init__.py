"""Mutation operators: the mistakes that people make in kernels, each a function of an equation.

Each module declares its own as ``OPERATORS``. Importing this package does not import jax; the
modules do.
"""

from __future__ import annotations

import functools
import importlib

from pytest_pallas.mutation.model import Operator

#: The modules that declare operators, in the order in which these are tried and listed.
MODULES: tuple[str, ...] = (
    "comparisons",
    "grids",
    "masks",
    "arithmetic",
    "stores",
    "transfers",
    "randoms",
)


@functools.cache
def declared_operators() -> tuple[Operator, ...]:
    """All operators, in order. It imports their modules, and so JAX."""
    modules = [importlib.import_module(f"{__name__}.{module}") for module in MODULES]
    return tuple(operator for module in modules for operator in module.OPERATORS)


__all__ = ["MODULES", "declared_operators"]
