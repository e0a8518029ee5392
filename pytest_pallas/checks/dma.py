"""``dma``: leftover DMAs and semaphores, and accesses to devices that are not ready."""

from __future__ import annotations

from pallas_sim.findings import OF_TRANSFERS
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
    every_mesh=True,
    watches="dma",
)
def dma(context: CheckContext) -> CheckResult:
    """Check every DMA and semaphore of a kernel, under several schedules.

    The kernel must wait for every DMA that it starts, on both sides. Every semaphore must be 0 at
    the end, because the next kernel needs that. No device may copy to another device, or signal its
    semaphore, before it knows that the other device has started the kernel.

    Raises:
      NotApplicableError: the kernel has no DMAs and no semaphores.
      DmaError: with every line, program and device.
    """
    for schedule, outcome in under_schedules(context):
        findings = [finding for finding in outcome.findings if finding.kind in OF_TRANSFERS]
        if findings:
            raise under(schedule, DmaError.of(*findings))
    return CheckResult(comparisons=())
