"""Expected failures of kernels that an interpreter of JAX cannot execute."""

from __future__ import annotations

from pytest_pallas.spec import ExpectedFailure


def cannot_execute(reason: str, *backends: str) -> dict[str, ExpectedFailure]:
    """Strict expected failures of whatever executes the kernel on ``backends``."""
    failure = ExpectedFailure(reason=reason, jax="0.12.0.1", scope="executing")
    return dict.fromkeys(backends, failure)
