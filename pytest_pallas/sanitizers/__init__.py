"""Sanitizers: a module for each thing that a wrong number may not show, by ``@declare_sanitizer``.

A sanitizer is a check for errors that an output need not show; ``--pallas-sanitize`` selects them.
Importing this package does not import jax; the modules do. Therefore their names are listed here,
and a test compares the list with the declarations.
"""

from __future__ import annotations

import functools

from pytest_pallas.checks.check import Check, declared_by, names_of

#: The modules that declare a sanitizer, in the order in which the sanitizers run.
MODULES: tuple[str, ...] = (
    "races",
    "dma",
    "deadlock",
    "schedule",
    "memory",
    "donation",
    "device",
)

#: The names of the sanitizers.
NAMES: tuple[str, ...] = names_of(MODULES)


@functools.cache
def declared_sanitizers() -> tuple[Check, ...]:
    """The sanitizers of this package, in order. Imports their modules, and with them JAX."""
    return declared_by(__name__, MODULES)


__all__ = ["MODULES", "NAMES", "declared_sanitizers"]
