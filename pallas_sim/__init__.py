"""A simulated machine for Pallas kernels that compiles nothing.

It evaluates what JAX traced, kernels and everything around them, equation by equation in numpy, and
reports what is wrong with the kernels, whatever they returned. The public names are listed here and
nowhere else; ``pallas_sim.errors``, ``findings``, ``chips``, ``dtypes`` and ``traces`` are public
modules. Names are imported when they are first used: ``import pallas_sim`` imports neither jax nor
numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pallas_sim.errors import (
        BoundsError,
        DeadlockError,
        DeviceError,
        KernelError,
        MissingRuleError,
        OptionError,
        PallasError,
        SimulationError,
        SimulationLimitError,
    )
    from pallas_sim.findings import Finding
    from pallas_sim.machine import Limits, Machine
    from pallas_sim.registry import Equation, rule
    from pallas_sim.simulation import Simulation, simulate

_HOMES = {
    "BoundsError": "pallas_sim.errors",
    "DeadlockError": "pallas_sim.errors",
    "DeviceError": "pallas_sim.errors",
    "Equation": "pallas_sim.registry",
    "Finding": "pallas_sim.findings",
    "KernelError": "pallas_sim.errors",
    "Limits": "pallas_sim.machine",
    "Machine": "pallas_sim.machine",
    "MissingRuleError": "pallas_sim.errors",
    "OptionError": "pallas_sim.errors",
    "PallasError": "pallas_sim.errors",
    "Simulation": "pallas_sim.simulation",
    "SimulationError": "pallas_sim.errors",
    "SimulationLimitError": "pallas_sim.errors",
    "rule": "pallas_sim.registry",
    "simulate": "pallas_sim.simulation",
}

__all__ = [
    "BoundsError",
    "DeadlockError",
    "DeviceError",
    "Equation",
    "Finding",
    "KernelError",
    "Limits",
    "Machine",
    "MissingRuleError",
    "OptionError",
    "PallasError",
    "Simulation",
    "SimulationError",
    "SimulationLimitError",
    "rule",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
