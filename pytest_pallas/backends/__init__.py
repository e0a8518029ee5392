"""Backends: ways to execute a kernel. Importing this package does not import jax."""

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Label, Target, default_target, targets_of
from pytest_pallas.backends.protocol import (
    Backend,
    Call,
    Configured,
    Kind,
    Observer,
    Outcome,
    RunSettings,
    chip_of,
    label,
)
from pytest_pallas.backends.registry import (
    FAMILIES,
    REPLACED,
    Family,
    Selection,
    compiling,
    parse,
    select,
    with_target,
)

__all__ = [
    "DEFAULT_TARGETS",
    "FAMILIES",
    "REPLACED",
    "TARGETS",
    "Backend",
    "Call",
    "Configured",
    "Family",
    "Kind",
    "Label",
    "Observer",
    "Outcome",
    "RunSettings",
    "Selection",
    "Target",
    "chip_of",
    "compiling",
    "default_target",
    "label",
    "parse",
    "select",
    "targets_of",
    "with_target",
]
