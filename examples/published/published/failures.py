"""What is wrong in these kernels today, as strict expected failures."""

from __future__ import annotations

from pytest_pallas import ExpectedFailure

#: The newest JAX in which these failures were seen.
JAX = "0.12.0.1"

TPU = ("tpu-sim", "tpu")
GPU = ("gpu-sim", "gpu")
HOPPER = ("gpu-sim:h100", "gpu:h100", "gpu:h200")
BLACKWELL = ("gpu-sim:b200", "gpu:b200")


def fails(
    backend: str, reason: str, *checks: str, hardware: bool = True
) -> dict[str, ExpectedFailure]:
    """An expected failure on a simulator: of these checks, or of all that execute the kernel.

    ``hardware=False`` is for what hardware may get right: races, and reads of what is not used.
    """
    failure = ExpectedFailure(
        reason=reason,
        jax=JAX,
        checks=checks,
        scope="all" if checks else "executing",
        hardware=hardware,
    )
    return {backend: failure}
