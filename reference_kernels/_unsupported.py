"""Expected failures of kernels that an interpreter of JAX cannot execute."""

from __future__ import annotations

from pytest_pallas.spec import ExpectedFailure

#: The checks and sanitizers that execute a kernel. The others, which only trace it or ask the
#: reference, succeed where nothing can be executed.
EXECUTING = (
    *("forward", "gradient", "vmap", "determinism", "immutability", "jit", "export", "blocks"),
    *("sharding", "linearity", "permutation", "relation", "cross", "padding"),
    *("races", "dma", "deadlock", "schedule", "memory", "donation"),
)


def cannot_execute(reason: str, *backends: str) -> dict[str, ExpectedFailure]:
    """Strict expected failures of whatever executes the kernel on ``backends``."""
    failure = ExpectedFailure(reason=reason, jax="0.12.0.1", checks=EXECUTING)
    return dict.fromkeys(backends, failure)
