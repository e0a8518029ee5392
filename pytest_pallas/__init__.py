"""pytest-pallas: find the bugs of JAX Pallas kernels before the hardware does.

The public names are listed here and nowhere else. They are imported when they are first used, so
that ``import pytest_pallas`` imports neither jax nor numpy nor hypothesis.

PYTEST_DONT_REWRITE, and see ``_CompiledModules``.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

from pytest_pallas._version import __version__

if TYPE_CHECKING:
    from pallas_sim.chips import Gpu, Target, Tpu, add_chip
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
    from pytest_pallas import strategies
    from pytest_pallas.backends.analyzing import analyze
    from pytest_pallas.backends.protocol import Backend, Call, Outcome, RunSettings
    from pytest_pallas.backends.registry import Family
    from pytest_pallas.checks import Check, declare_check, declare_sanitizer
    from pytest_pallas.compile.machine_code import Cost
    from pytest_pallas.compile.service import CompileReport
    from pytest_pallas.errors import (
        BackendUnavailableError,
        CapacityError,
        CompileError,
        CompilerFailedError,
        CostError,
        CrashError,
        DmaError,
        DrawTooLargeError,
        FleetError,
        GangError,
        GoldenError,
        GridError,
        HangError,
        IsolationError,
        KernelReferenceError,
        LeakError,
        MismatchError,
        NoPallasCallError,
        NotApplicableError,
        OutOfMemoryError,
        PeerError,
        RaceError,
        ShapeLanguageError,
        SpecError,
        TooFewDevicesError,
        UnsupportedKernelError,
    )
    from pytest_pallas.fixture_types import (
        PallasBenchmark,
        PallasCheck,
        PallasCompile,
        PallasMesh,
        PallasRun,
    )
    from pytest_pallas.grid.analysis import Analysis
    from pytest_pallas.grid.findings import GridFinding
    from pytest_pallas.judge.tolerance import Comparison, Tolerance
    from pytest_pallas.record import Record
    from pytest_pallas.run.collection import suite
    from pytest_pallas.run.standalone import check
    from pytest_pallas.spec import (
        EquivalentMutant,
        ExpectedFailure,
        KernelSpec,
        Linear,
        Permuted,
        Raises,
        Relation,
    )
    from pytest_pallas.strategies import Arguments

_HOMES = {
    "Analysis": "pytest_pallas.grid.analysis",
    "Arguments": "pytest_pallas.strategies",
    "Backend": "pytest_pallas.backends.protocol",
    "BackendUnavailableError": "pytest_pallas.errors",
    "BoundsError": "pallas_sim.errors",
    "CapacityError": "pytest_pallas.errors",
    "Call": "pytest_pallas.backends.protocol",
    "Check": "pytest_pallas.checks",
    "Comparison": "pytest_pallas.judge.tolerance",
    "CompileError": "pytest_pallas.errors",
    "CompileReport": "pytest_pallas.compile.service",
    "CompilerFailedError": "pytest_pallas.errors",
    "Cost": "pytest_pallas.compile.machine_code",
    "CostError": "pytest_pallas.errors",
    "FleetError": "pytest_pallas.errors",
    "GangError": "pytest_pallas.errors",
    "GoldenError": "pytest_pallas.errors",
    "Gpu": "pallas_sim.chips",
    "CrashError": "pytest_pallas.errors",
    "DeadlockError": "pallas_sim.errors",
    "DeviceError": "pallas_sim.errors",
    "DmaError": "pytest_pallas.errors",
    "DrawTooLargeError": "pytest_pallas.errors",
    "EquivalentMutant": "pytest_pallas.spec",
    "ExpectedFailure": "pytest_pallas.spec",
    "Family": "pytest_pallas.backends.registry",
    "GridError": "pytest_pallas.errors",
    "GridFinding": "pytest_pallas.grid.findings",
    "HangError": "pytest_pallas.errors",
    "IsolationError": "pytest_pallas.errors",
    "KernelError": "pallas_sim.errors",
    "KernelSpec": "pytest_pallas.spec",
    "LeakError": "pytest_pallas.errors",
    "Linear": "pytest_pallas.spec",
    "MismatchError": "pytest_pallas.errors",
    "MissingRuleError": "pallas_sim.errors",
    "NoPallasCallError": "pytest_pallas.errors",
    "NotApplicableError": "pytest_pallas.errors",
    "OptionError": "pallas_sim.errors",
    "OutOfMemoryError": "pytest_pallas.errors",
    "PeerError": "pytest_pallas.errors",
    "Outcome": "pytest_pallas.backends.protocol",
    "PallasBenchmark": "pytest_pallas.fixture_types",
    "PallasCheck": "pytest_pallas.fixture_types",
    "PallasCompile": "pytest_pallas.fixture_types",
    "PallasMesh": "pytest_pallas.fixture_types",
    "PallasRun": "pytest_pallas.fixture_types",
    "PallasError": "pallas_sim.errors",
    "Permuted": "pytest_pallas.spec",
    "RaceError": "pytest_pallas.errors",
    "Raises": "pytest_pallas.spec",
    "Record": "pytest_pallas.record",
    "KernelReferenceError": "pytest_pallas.errors",
    "Relation": "pytest_pallas.spec",
    "RunSettings": "pytest_pallas.backends.protocol",
    "ShapeLanguageError": "pytest_pallas.errors",
    "SimulationError": "pallas_sim.errors",
    "SimulationLimitError": "pallas_sim.errors",
    "SpecError": "pytest_pallas.errors",
    "Target": "pallas_sim.chips",
    "Tolerance": "pytest_pallas.judge.tolerance",
    "TooFewDevicesError": "pytest_pallas.errors",
    "UnsupportedKernelError": "pytest_pallas.errors",
    "Tpu": "pallas_sim.chips",
    "add_chip": "pallas_sim.chips",
    "analyze": "pytest_pallas.backends.analyzing",
    "check": "pytest_pallas.run.standalone",
    "declare_check": "pytest_pallas.checks",
    "declare_sanitizer": "pytest_pallas.checks",
    "suite": "pytest_pallas.run.collection",
}

__all__ = [
    "Analysis",
    "Arguments",
    "Backend",
    "BackendUnavailableError",
    "BoundsError",
    "Call",
    "CapacityError",
    "Check",
    "Comparison",
    "CompileError",
    "CompileReport",
    "CompilerFailedError",
    "Cost",
    "CostError",
    "CrashError",
    "DeadlockError",
    "DeviceError",
    "DmaError",
    "DrawTooLargeError",
    "EquivalentMutant",
    "ExpectedFailure",
    "Family",
    "FleetError",
    "GangError",
    "GoldenError",
    "Gpu",
    "GridError",
    "GridFinding",
    "HangError",
    "IsolationError",
    "KernelError",
    "KernelReferenceError",
    "KernelSpec",
    "LeakError",
    "Linear",
    "MismatchError",
    "MissingRuleError",
    "NoPallasCallError",
    "NotApplicableError",
    "OptionError",
    "OutOfMemoryError",
    "Outcome",
    "PallasBenchmark",
    "PallasCheck",
    "PallasCompile",
    "PallasError",
    "PallasMesh",
    "PallasRun",
    "PeerError",
    "Permuted",
    "RaceError",
    "Raises",
    "Record",
    "Relation",
    "RunSettings",
    "ShapeLanguageError",
    "SimulationError",
    "SimulationLimitError",
    "SpecError",
    "Target",
    "Tolerance",
    "TooFewDevicesError",
    "Tpu",
    "UnsupportedKernelError",
    "__version__",
    "add_chip",
    "analyze",
    "check",
    "declare_check",
    "declare_sanitizer",
    "strategies",
    "suite",
]


class _CompiledModules:
    """Finds the modules of this package with the bytecode that the installer compiled.

    pytest rewrites the assertions of every module of a distribution that has an entry point
    ``pytest11``. It compiles each of them again and ignores the bytecode beside it. No module of
    this package has an assertion for users, and 500 of them take seconds.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module of this package as Python does without pytest."""
        return PathFinder.find_spec(name, path, target) if name.startswith(f"{__name__}.") else None


_loader: Any = __spec__.loader
if _loader in sys.meta_path:  # pytest's hook, which finds and loads what it rewrites
    sys.meta_path.insert(sys.meta_path.index(_loader), _CompiledModules)


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name == "strategies":
        return importlib.import_module("pytest_pallas.strategies")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
