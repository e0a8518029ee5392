"""Sanitizers: one module for each thing that a wrong number may not show.

A sanitizer is a check that watches runs of a kernel; ``--pallas-sanitize`` chooses among them.
Importing this package does not import jax.
"""

from __future__ import annotations

import pkgutil
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_pallas.checks.check import Check

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend
    from pytest_pallas.checks.trial import Finding, Trial
    from pytest_pallas.spec import KernelSpec


def _from(module: str) -> Callable[[Trial], Finding]:
    """The function that a module of this package is named after, imported when it is called."""

    def run(trial: Trial) -> Finding:
        return pkgutil.resolve_name(f"{__name__}.{module}:{module}")(trial)

    return run


def _nothing(spec: KernelSpec) -> str | None:
    del spec
    return None


def _simulated(backend: Backend) -> str | None:
    if getattr(backend, "detects_races", False):
        return None
    return f"{backend.name} does not simulate what happens at the same time"


def _ordered(backend: Backend) -> str | None:
    if pkgutil.resolve_name(f"{__name__}.runs:has_schedules")(backend):
        return None
    return f"{backend.name} runs everything in one order"


def _fillable(backend: Backend) -> str | None:
    if getattr(backend, "fills", False) or backend.name == "interpret":
        return None
    return f"{backend.name} cannot be told what memory holds that nobody has written"


def _executing(backend: Backend) -> str | None:
    return f"{backend.name} executes nothing" if backend.kind == "compiling" else None


def _watched_gpu(backend: Backend) -> str | None:
    if backend.kind != "hardware" or backend.platform != "gpu":
        return f"{backend.name} is no GPU: compute-sanitizer watches code that runs on one"
    if shutil.which("compute-sanitizer") is None:
        return "compute-sanitizer is not on the PATH; it comes with NVIDIA's CUDA toolkit"
    return None


def _one_device(spec: KernelSpec) -> str | None:
    return "compute-sanitizer is given calls on one device" if spec.meshes else None


def _sanitizer(
    name: str,
    asks: str,
    on: Callable[[Backend], str | None],
    needs: Callable[[KernelSpec], str | None] = _nothing,
    **more: Any,
) -> Check:
    return Check(
        name=name,
        asks=asks,
        run=_from(name),
        needs=needs,
        on=on,
        share=0.25,
        kind="sanitizer",
        **more,
    )


#: The sanitizers of this package, in the order in which they run.
SANITIZERS: tuple[Check, ...] = (
    _sanitizer("races", "is every access ordered with every write to the same place?", _simulated),
    _sanitizer(
        "dma",
        "is every DMA waited for, every semaphore 0 at the end, every device ready?",
        _ordered,
    ),
    _sanitizer("deadlock", "does every wait get its signal?", _simulated),
    _sanitizer(
        "schedule",
        "does every legal order of DMAs and parallel programs give the same bits?",
        _ordered,
    ),
    _sanitizer(
        "memory",
        "is everything written before it is read, and every index within bounds?",
        _fillable,
    ),
    _sanitizer(
        "donation",
        "is an operand that shares an output's memory read before it is overwritten?",
        _executing,
    ),
    _sanitizer(
        "device",
        "does compute-sanitizer see an access out of bounds on the GPU, or a race in its memory?",
        _watched_gpu,
        _one_device,
        named=True,  # every example takes half a minute
    ),
)

#: Their names.
NAMES: tuple[str, ...] = tuple(sanitizer.name for sanitizer in SANITIZERS)

#: The names of those that ``all`` means.
ALL: tuple[str, ...] = tuple(sanitizer.name for sanitizer in SANITIZERS if not sanitizer.named)

__all__ = ["ALL", "NAMES", "SANITIZERS"]
