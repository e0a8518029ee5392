"""``export``: the kernel survives ``jax.export``, and gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.export

from pytest_pallas.backends import Backend, Call
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.hardware import CUSTOM_CALLS
from pytest_pallas.backends.tracing import QUICK, abstract, apply, split
from pytest_pallas.checks.trial import Finding, Trial, run
from pytest_pallas.errors import KernelError, NotApplicableError
from pytest_pallas.numerics import bitwise
from pytest_pallas.oracle import flatten


@dataclass(frozen=True)
class RoundTrip:
    """A function exported, serialized, read back and called. It returns the leaves of its answer.

    ``platform`` is what it is exported for; None for that of the default device.
    """

    function: Callable[..., Any]
    platform: str | None = None

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        """Export the function for these arguments, and call what was read back."""
        given = Call(function=self.function, args=args, options=options)
        static, shapes = abstract(given)

        def leaves(*arrays: Any) -> tuple[Any, ...]:
            return tuple(jax.tree.leaves(apply(static, list(arrays))))

        # JAX promises no stable format for the kernel inside; this is read at once.
        allowed = [
            jax.export.DisabledSafetyCheck.custom_call(name)
            for names in CUSTOM_CALLS.values()
            for name in names
        ]
        platforms = None if self.platform is None else (self.platform,)
        exporting = jax.export.export(jax.jit(leaves), platforms=platforms, disabled_checks=allowed)
        try:
            data = exporting(*shapes).serialize()
        except Exception as error:
            raise KernelError(
                f"the kernel runs, but jax.export refuses it: {type(error).__name__}: "
                f"{brief(str(error))}. What is exported runs in another process, so it cannot "
                "call back to Python on the host."
            ) from error
        # What is interpreted is compiled as it is elsewhere: other optimizations give other bits.
        again = jax.jit(
            jax.export.deserialize(data).call,
            compiler_options=dict(QUICK) if self.platform is None else None,
        )
        return list(again(*split(given)[1]))


def export(trial: Trial) -> Finding:
    """Export and serialize the kernel, deserialize and call it, and compare bit for bit.

    Raises:
      NotApplicableError: the kernel cannot be jitted, or the backend's kernels not be exported.
    """
    if not trial.jit:
        raise NotApplicableError(
            "the export check needs a kernel that can be jitted, not jit=False"
        )
    reason = on(trial.backend)
    if reason is not None:
        raise NotApplicableError(reason)
    direct = run(trial, trial.kernel, trial.arguments.args)
    platform = None if trial.backend.kind == "interpreting" else trial.backend.platform
    trip = RoundTrip(trial.kernel, {"gpu": "cuda"}.get(platform or "", platform))
    again = run(trial, trip, trial.arguments.args, jit=False)
    comparisons = [
        bitwise(actual, wanted, where=f"{path or 'output'} of the exported kernel")
        for actual, (path, wanted) in zip(again.values, flatten(direct.values), strict=True)
    ]
    return Finding(comparisons=comparisons, outcome=direct, seconds=direct.seconds + again.seconds)


def on(backend: Backend) -> str | None:
    """Why kernels cannot be exported from a backend, or None."""
    if backend.kind == "interpreting" and backend.platform != "any":
        return (
            f"{backend.name} runs kernels by callbacks to the host, which JAX cannot serialize; "
            "interpret and hardware can be exported"
        )
    return None
