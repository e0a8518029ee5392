"""Backends: ways to execute a kernel. Importing this package does not import jax."""

from pytest_pallas.backends.protocol import Backend, Call, Kind, Observer, Outcome, label
from pytest_pallas.backends.registry import (
    FAMILIES,
    Family,
    Selection,
    compiling,
    parse,
    select,
)
from pytest_pallas.backends.targets import DEFAULT_TARGETS, TARGETS, Target, targets_of

__all__ = [
    "DEFAULT_TARGETS",
    "FAMILIES",
    "TARGETS",
    "Backend",
    "Call",
    "Family",
    "Kind",
    "Observer",
    "Outcome",
    "Selection",
    "Target",
    "compiling",
    "label",
    "parse",
    "select",
    "targets_of",
]
