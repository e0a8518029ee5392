"""Checks and sanitizers: one module for each, with a function that a decorator declares.

``@declare_check`` declares a check: one question about a kernel, such as whether it equals its
reference. ``@declare_sanitizer`` declares a check for errors that an output need not show, such as
races; ``--pallas-sanitize`` selects those, too. ``check`` has the declarations, ``context`` what
both run on, and ``metamorphic`` what several of them share.

Importing this package does not import jax; the modules do. Therefore their names are listed here,
and a test compares the list with the declarations.
"""

from __future__ import annotations

import functools

from pytest_pallas.checks.check import Check as Check
from pytest_pallas.checks.check import declare_check as declare_check
from pytest_pallas.checks.check import declare_sanitizer as declare_sanitizer
from pytest_pallas.checks.check import declared_by, names_of

#: The modules that declare a check, in the order in which the checks run.
MODULES: tuple[str, ...] = (
    "forward",
    "gradient",
    "vmap",
    "determinism",
    "immutability",
    "dtype",
    "jit",
    "export",
    "blocks",
    "sharding",
    "linearity",
    "permutation",
    "relation",
    "raises",
    "cross",
    "padding",
    "grid",
    "oracle_strength",
)

#: The names of their checks.
NAMES: tuple[str, ...] = names_of(MODULES)


@functools.cache
def declared_checks() -> tuple[Check, ...]:
    """Return the checks of this package, in order. Imports their modules, and with them JAX."""
    return declared_by(__name__, MODULES)


#: The modules that declare a sanitizer, in the order in which the sanitizers run. A sanitizer is a
#: check for errors that an output need not show; ``--pallas-sanitize`` selects them.
SANITIZER_MODULES: tuple[str, ...] = (
    "races",
    "dma",
    "deadlock",
    "schedule",
    "memory",
    "donation",
    "device",
    "synchronization",
)

#: The names of the sanitizers.
SANITIZERS: tuple[str, ...] = names_of(SANITIZER_MODULES)


@functools.cache
def declared_sanitizers() -> tuple[Check, ...]:
    """Return the sanitizers of this package, in order. Imports their modules, and with them JAX."""
    return declared_by(__name__, SANITIZER_MODULES)
