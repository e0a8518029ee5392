"""``dma``: leftover DMAs and semaphores, and accesses to devices that are not ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pallas_sim.findings import OF_TRANSFERS, Finding
from pytest_pallas.checks.check import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, under
from pytest_pallas.checks.schedule import requires_kernels, requires_schedules, under_schedules
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import DmaError


@declare_sanitizer(
    "dma",
    asks="is every DMA waited for, every semaphore 0 at the end, every device ready?",
    requires_backend=requires_schedules,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    subjects=larger_first,
    watches="dma",
)
def dma(context: CheckContext) -> CheckResult:
    """Check every DMA and semaphore of a kernel, under several schedules.

    The kernel must wait for every DMA that it starts, on both sides. Every semaphore must be 0 at
    the end, because the next kernel needs that. No device may copy to another device, or signal its
    semaphore, before it knows that the other device has started the kernel. A kernel with a
    ``collective_id`` must use the barrier semaphore that this selects.

    Raises:
      NotApplicableError: the kernel has no DMAs and no semaphores.
      DmaError: with every line, program and device.
    """
    for schedule, outcome in under_schedules(context):
        findings = [] if outcome.error else list(_unused_barriers(outcome.kernels))
        findings += [finding for finding in outcome.findings if finding.kind in OF_TRANSFERS]
        if findings:
            raise under(schedule, DmaError.of(*findings))
    return CheckResult(comparisons=())


def _unused_barriers(kernels: Any) -> Iterator[Finding]:
    """Report kernels that name a barrier semaphore and do not use it, which Mosaic rejects."""
    for kernel in kernels:
        params = kernel.eqn.params.get("compiler_params")
        if getattr(params, "allow_collective_id_without_custom_barrier", False):
            continue
        if (
            getattr(params, "collective_id", None) is not None
            and "get_barrier_semaphore" not in kernel.primitives
        ):
            yield Finding(
                kind="entry",
                message=(
                    f"{kernel.name} ({kernel.source}) has collective_id={params.collective_id} and "
                    "does not use its barrier semaphore, so the devices do not wait for each other "
                    "at the start. Synchronize them with pltpu.get_barrier_semaphore(), or leave "
                    "out collective_id"
                ),
            )
