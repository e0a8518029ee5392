"""``synchronization``: which waits, signals, barriers and fences the kernel needs.

It finds no mistake: what is redundant costs time. So it fails only if the kernel is wrong as it is.
The record has the table, and a note of what is redundant in all examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pallas_sim
from pallas_sim import SynchronizationReport, SyncThreshold, thresholds
from pytest_pallas.backends.protocol import Backend, chip_of
from pytest_pallas.checks import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, as_kernel_error
from pytest_pallas.checks.schedule import requires_concurrency
from pytest_pallas.decoding import jsonable
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec

#: Why it does not apply to a kernel.
NOTHING = "no example waits, signals, or comes to a barrier or fence of the kernel's own"


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why the kernels of a call have nothing that could be left out, or None."""
    del spec, backend
    return None if any(kernel.asynchronous for kernel in kernels) else NOTHING


@declare_sanitizer(
    "synchronization",
    asks="which waits, signals, barriers and fences does the kernel need?",
    requires_backend=requires_concurrency,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    opt_in=True,  # each example takes as many runs as the kernel has barriers
    tries_mutants=False,
    subjects=larger_first,
    every_mesh=True,
    evidence=SynchronizationReport,
)
def synchronization(context: CheckContext) -> CheckResult:
    """Leave out each wait, signal, barrier and fence of the kernel, and see what goes wrong.

    Raises:
      NotApplicableError: the kernel has none, or needs values while it is traced.
      PallasError: the kernel is wrong as it is.
    """
    if not context.settings.jit:
        raise NotApplicableError("a kernel that needs values while it is traced is not recorded")
    arguments = context.arguments
    options = {**arguments.options, **arguments.tuning}
    target = chip_of(context.backend).name
    try:
        report = pallas_sim.synchronization(
            context.kernel, *arguments.args, target=target, schedules=0, **options
        )
    except Exception as error:
        raise as_kernel_error(error) from error
    if not report.groups:
        raise NotApplicableError(NOTHING)
    return CheckResult(comparisons=(), seconds=report.seconds, evidence=report)


def facts_of_record(reports: Sequence[SynchronizationReport]) -> dict[str, Any]:
    """Return what a record has of the reports of all examples: the groups, and notes."""
    groups = thresholds(reports)
    notes = [Note(text, "run") for text in map(_redundant, groups) if text]
    return {"synchronization": tuple(map(jsonable, groups)), "notes": tuple(notes)}


def _redundant(group: SyncThreshold) -> str:
    """Return a sentence about a group that no example needs; "" of any other."""
    if {status for _, status in group.statuses} != {"redundant"}:
        return ""
    most = max(devices for devices, _ in group.statuses)
    up_to = f" on up to {most} devices" if most > 1 else ""
    return f"no example{up_to} needs {group.where}"
