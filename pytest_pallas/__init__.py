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
    from pytest_pallas import strategies
    from pytest_pallas.analysis.grid import Analysis, GridFinding
    from pytest_pallas.analysis.machine_code import Cost
    from pytest_pallas.backends import Backend, Call, Family, Outcome, RunSettings, Target
    from pytest_pallas.backends.analyzing import analyze
    from pytest_pallas.checks import Check, declare_check, declare_sanitizer
    from pytest_pallas.collection.suite import suite
    from pytest_pallas.compilers.report import CompileReport
    from pytest_pallas.devices.gpus import Gpu
    from pytest_pallas.devices.targets import add_chip
    from pytest_pallas.devices.tpus import Tpu
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
    from pytest_pallas.numerics import Comparison, Tolerance
    from pytest_pallas.raises import Raises
    from pytest_pallas.record import Record
    from pytest_pallas.relations import Linear, Permuted, Relation
    from pytest_pallas.sim_errors import (
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
    from pytest_pallas.spec import EquivalentMutant, ExpectedFailure, KernelSpec
    from pytest_pallas.standalone import check
    from pytest_pallas.strategies import Arguments

_HOMES = {
    "Analysis": "pytest_pallas.analysis.grid",
    "Arguments": "pytest_pallas.strategies",
    "Backend": "pytest_pallas.backends",
    "BackendUnavailableError": "pytest_pallas.errors",
    "BoundsError": "pytest_pallas.sim_errors",
    "CapacityError": "pytest_pallas.errors",
    "Call": "pytest_pallas.backends",
    "Check": "pytest_pallas.checks",
    "Comparison": "pytest_pallas.numerics",
    "CompileError": "pytest_pallas.errors",
    "CompileReport": "pytest_pallas.compilers.report",
    "CompilerFailedError": "pytest_pallas.errors",
    "Cost": "pytest_pallas.analysis.machine_code",
    "CostError": "pytest_pallas.errors",
    "FleetError": "pytest_pallas.errors",
    "GangError": "pytest_pallas.errors",
    "GoldenError": "pytest_pallas.errors",
    "Gpu": "pytest_pallas.devices.gpus",
    "CrashError": "pytest_pallas.errors",
    "DeadlockError": "pytest_pallas.sim_errors",
    "DeviceError": "pytest_pallas.sim_errors",
    "DmaError": "pytest_pallas.errors",
    "DrawTooLargeError": "pytest_pallas.errors",
    "EquivalentMutant": "pytest_pallas.spec",
    "ExpectedFailure": "pytest_pallas.spec",
    "Family": "pytest_pallas.backends",
    "GridError": "pytest_pallas.errors",
    "GridFinding": "pytest_pallas.analysis.grid",
    "HangError": "pytest_pallas.errors",
    "IsolationError": "pytest_pallas.errors",
    "KernelError": "pytest_pallas.sim_errors",
    "KernelSpec": "pytest_pallas.spec",
    "LeakError": "pytest_pallas.errors",
    "Linear": "pytest_pallas.relations",
    "MismatchError": "pytest_pallas.errors",
    "MissingRuleError": "pytest_pallas.sim_errors",
    "NoPallasCallError": "pytest_pallas.errors",
    "NotApplicableError": "pytest_pallas.errors",
    "OptionError": "pytest_pallas.sim_errors",
    "OutOfMemoryError": "pytest_pallas.errors",
    "PeerError": "pytest_pallas.errors",
    "Outcome": "pytest_pallas.backends",
    "PallasBenchmark": "pytest_pallas.fixture_types",
    "PallasCheck": "pytest_pallas.fixture_types",
    "PallasCompile": "pytest_pallas.fixture_types",
    "PallasMesh": "pytest_pallas.fixture_types",
    "PallasRun": "pytest_pallas.fixture_types",
    "PallasError": "pytest_pallas.sim_errors",
    "Permuted": "pytest_pallas.relations",
    "RaceError": "pytest_pallas.errors",
    "Raises": "pytest_pallas.raises",
    "Record": "pytest_pallas.record",
    "KernelReferenceError": "pytest_pallas.errors",
    "Relation": "pytest_pallas.relations",
    "RunSettings": "pytest_pallas.backends",
    "ShapeLanguageError": "pytest_pallas.errors",
    "SimulationError": "pytest_pallas.sim_errors",
    "SimulationLimitError": "pytest_pallas.sim_errors",
    "SpecError": "pytest_pallas.errors",
    "Target": "pytest_pallas.backends",
    "Tolerance": "pytest_pallas.numerics",
    "TooFewDevicesError": "pytest_pallas.errors",
    "UnsupportedKernelError": "pytest_pallas.errors",
    "Tpu": "pytest_pallas.devices.tpus",
    "add_chip": "pytest_pallas.devices.targets",
    "analyze": "pytest_pallas.backends.analyzing",
    "check": "pytest_pallas.standalone",
    "declare_check": "pytest_pallas.checks",
    "declare_sanitizer": "pytest_pallas.checks",
    "suite": "pytest_pallas.collection.suite",
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
