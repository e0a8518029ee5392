"""``synchronization``: which waits, signals, barriers and fences the kernel needs.

It finds no mistake: what is redundant costs time. So it fails only if the kernel is wrong as it is,
or if ``KernelSpec.redundant`` is. The record has the table, and a note of what is redundant in all
examples, with the reason of the spec why it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pallas_sim
from pallas_sim import SyncGroup, SynchronizationReport, SyncThreshold, thresholds
from pytest_pallas.backends.protocol import Backend, chip_of
from pytest_pallas.checks import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, as_kernel_error
from pytest_pallas.checks.schedule import requires_concurrency
from pytest_pallas.coverage import names
from pytest_pallas.decoding import jsonable
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec

#: Why it does not apply to a kernel.
NOTHING = "no example waits, signals, or comes to a barrier or fence of the kernel's own"


@dataclass(frozen=True, kw_only=True)
class SyncEvidence:
    """Which synchronisation an example needs.

    Attributes:
      report: of the example.
      redundant: as in ``KernelSpec.redundant``.
    """

    report: SynchronizationReport
    redundant: Mapping[str, str] = field(default_factory=dict[str, str])


def is_named(key: str, groups: Sequence[SyncGroup]) -> bool:
    """Return whether a key of ``KernelSpec.redundant`` is about one of some groups.

    A key is a line of a wait, signal, barrier or fence, or of the call of a function that has it,
    or the name of a semaphore or barrier.
    """
    return any(
        key in group.on or any(names(key, line) for line in (site.line, *site.callers))
        for group in groups
        for site in group.sites
    )


def reason_of(redundant: Mapping[str, str], groups: Sequence[SyncGroup]) -> str:
    """Return why some groups stay although they are redundant; "" if the spec has no reason."""
    return next((why for key, why in redundant.items() if is_named(key, groups)), "")


def conclude(evidence: Sequence[SyncEvidence]) -> str | None:
    """Return what is wrong with ``KernelSpec.redundant``, over all examples; None if nothing is."""
    groups = [group for one in evidence for group in one.report.groups]
    problems: list[str] = []
    for key in evidence[0].redundant:
        named = [group for group in groups if is_named(key, [group])]
        needed = next((group for group in named if group.status in ("needed", "end")), None)
        if not named:
            problems.append(
                f"redundant= has {key!r}, which is about no wait, signal, barrier or fence that an "
                "example came to: correct it, or remove it"
            )
        elif needed is not None:
            problems.append(
                f"redundant= has {key!r}, and {needed.where} is needed: without, {needed.effect}"
                f"{needed.shown_by}; remove {key!r} from redundant="
            )
    return "\n".join(problems) or None


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
    conclude=conclude,
    evidence=SyncEvidence,
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
    evidence = SyncEvidence(report=report, redundant=context.redundant)
    return CheckResult(comparisons=(), seconds=report.seconds, evidence=evidence)


def facts_of_record(evidence: Sequence[SyncEvidence]) -> dict[str, Any]:
    """Return what a record has of the evidence of all examples: the groups, and notes."""
    reports = [one.report for one in evidence]
    rows = thresholds(reports)
    notes: list[Note] = []
    for row in rows:
        groups = [
            group
            for report in reports
            for group in report.groups
            if not set(row.sites).isdisjoint(group.sites)
        ]
        if text := _redundant(row, reason_of(evidence[0].redundant, groups)):
            notes.append(Note(text, "run"))
    return {"synchronization": tuple(map(jsonable, rows)), "notes": tuple(notes)}


def _redundant(row: SyncThreshold, reason: str) -> str:
    """Return a sentence about a group that no example needs; "" of any other."""
    if {status for _, status in row.statuses} != {"redundant"}:
        return ""
    most = max(devices for devices, _ in row.statuses)
    up_to = f" on up to {most} devices" if most > 1 else ""
    why = f": {reason}" if reason else ""
    return f"no example{up_to} needs {row.where}{why}"
