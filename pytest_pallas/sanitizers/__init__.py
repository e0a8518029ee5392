"""Sanitizers: a module for each thing that a wrong number may not show, by ``@declare_sanitizer``.

A sanitizer is a check that watches runs of a kernel; ``--pallas-sanitize`` chooses among them.
Importing this package does not import jax; the modules do. So their names are listed here, and a
test compares the list with what the modules declare.
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

#: Their names.
NAMES: tuple[str, ...] = names_of(MODULES)


@functools.cache
def declared_sanitizers() -> tuple[Check, ...]:
    """The sanitizers of this package, in order. It imports their modules, and so JAX."""
    return declared_by(__name__, MODULES)


__all__ = ["MODULES", "NAMES", "declared_sanitizers"]
