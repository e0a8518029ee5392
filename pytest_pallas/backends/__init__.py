"""Backends: ways to execute a kernel. Importing this package does not import jax."""

from pytest_pallas.backends.protocol import Backend, Call, Kind, Outcome, label
from pytest_pallas.backends.registry import FAMILIES, Family, Selection, parse, select
from pytest_pallas.backends.targets import TARGETS, Target, targets_of

__all__ = [
    "FAMILIES",
    "TARGETS",
    "Backend",
    "Call",
    "Family",
    "Kind",
    "Outcome",
    "Selection",
    "Target",
    "label",
    "parse",
    "select",
    "targets_of",
]
