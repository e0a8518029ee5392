"""``dma``: what a kernel leaves behind, and whom it reaches before they are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_pallas.checks.trial import Finding, Trial
from pytest_pallas.errors import DmaError
from pytest_pallas.sanitizers.runs import under, under_schedules


def dma(trial: Trial) -> Finding:
    """Account for every DMA and semaphore of a kernel, under several schedules.

    Every DMA that is started is waited for, on both sides; every semaphore is 0 when the kernel
    ends, as the next kernel needs it; no device copies to another, or signals a semaphore of it,
    before it can know that the other has begun the kernel; and a kernel with a ``collective_id``
    uses the barrier semaphore that it selects.

    Raises:
      NotApplicableError: the kernel has none of these.
      DmaError: with every line, program and device.
    """
    seconds = 0.0
    for schedule, outcome in under_schedules(trial):
        seconds += outcome.seconds
        problems = [
            *outcome.problems,
            *(() if outcome.error else _unused_barriers(outcome.kernels)),
        ]
        if problems:
            raise under(schedule, DmaError("\n  ".join(problems)))
    return Finding(comparisons=(), seconds=seconds)


def _unused_barriers(kernels: Any) -> Iterator[str]:
    """Kernels that name a barrier semaphore and do not use it: the TPU's compiler refuses them."""
    for kernel in kernels:
        params = kernel.eqn.params.get("compiler_params")
        if getattr(params, "allow_collective_id_without_custom_barrier", False):
            continue
        if (
            getattr(params, "collective_id", None) is not None
            and "get_barrier_semaphore" not in kernel.primitives
        ):
            yield (
                f"{kernel.name} ({kernel.source}) has collective_id={params.collective_id} and "
                "never asks for its barrier semaphore: devices enter when they like. Let them wait "
                "for each other with pltpu.get_barrier_semaphore(), or leave out collective_id"
            )
