"""A simulated machine for Pallas kernels that compiles nothing.

It evaluates what JAX traced, kernels and everything around them, equation by equation in numpy, and
reports what is wrong with the kernels, whatever they returned. What is public:

- the names below, to run kernels (``simulate``), to give a primitive its rule (``rule``), and to
  build upon the machine (``evaluate`` and what follows it);
- ``pallas_sim.errors``, what it raises, and ``pallas_sim.findings``, what it reports;
- ``pallas_sim.chips``, the chips it knows, and ``pallas_sim.tracing``, to trace for one of them;
- ``pallas_sim.dtypes``, how JAX converts numbers;
- ``pallas_sim.traces``, to read what JAX traced.

All other modules may change in any version. Names are imported when they are first used: ``import
pallas_sim`` imports neither jax nor numpy.
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
    from pallas_sim.recorders import LoadRecorder, MagnitudeRecorder, uninitialized_load
    from pallas_sim.registry import Equation, rule
    from pallas_sim.rules.contractions import tensor_core_product
    from pallas_sim.simulation import (
        Simulation,
        evaluate,
        evaluate_equation,
        evaluate_with,
        prepare,
        run_eagerly,
        simulate,
    )
    from pallas_sim.timeline import Timeline, timeline_text

#: The modules that the names are imported from.
_HOMES = {
    "errors": (
        *("BoundsError", "DeadlockError", "DeviceError", "KernelError", "MissingRuleError"),
        *("OptionError", "PallasError", "SimulationError", "SimulationLimitError"),
    ),
    "findings": ("Finding",),
    "machine": ("Limits", "Machine"),
    "recorders": ("LoadRecorder", "MagnitudeRecorder", "uninitialized_load"),
    "registry": ("Equation", "rule"),
    "rules.contractions": ("tensor_core_product",),
    "simulation": (
        *("Simulation", "evaluate", "evaluate_equation", "evaluate_with", "prepare"),
        *("run_eagerly", "simulate"),
    ),
    "timeline": ("Timeline", "timeline_text"),
}

__all__ = [
    "BoundsError",
    "DeadlockError",
    "DeviceError",
    "Equation",
    "Finding",
    "KernelError",
    "Limits",
    "LoadRecorder",
    "Machine",
    "MagnitudeRecorder",
    "MissingRuleError",
    "OptionError",
    "PallasError",
    "Simulation",
    "SimulationError",
    "SimulationLimitError",
    "Timeline",
    "evaluate",
    "evaluate_equation",
    "evaluate_with",
    "prepare",
    "rule",
    "run_eagerly",
    "simulate",
    "tensor_core_product",
    "timeline_text",
    "uninitialized_load",
]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
