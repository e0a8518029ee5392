"""A kernel that waits for ever, and a right one after it, which must run all the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .naive import agrees


def _guarded(x: jax.Array, signals: int) -> jax.Array:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        for _ in range(signals):
            pl.semaphore_signal(semaphore, 1)
        pl.semaphore_wait(semaphore, 2)
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x)


def never_signalled(x: jax.Array) -> jax.Array:
    """Waits for two signals where one is given; the portable interpreter does not wait."""
    return _guarded(x, 1)


# One example only: each one that hangs takes the whole time limit.
_ONE = st.just((np.ones((8, 128), np.float32),))

SPEC_NEVER_SIGNALLED = KernelSpec(
    name="never_signalled",
    kernel=never_signalled,
    reference=twice,
    inputs=_ONE,
    checks=("forward",),
)


def naive_never_signalled() -> None:
    agrees(never_signalled, twice)


def signalled(x: jax.Array) -> jax.Array:
    """Nothing is wrong with this one: it comes after one that was stopped."""
    return _guarded(x, 2)


SPEC_SIGNALLED = KernelSpec(
    name="signalled",
    kernel=signalled,
    reference=twice,
    inputs=_ONE,
    checks=("forward", "determinism"),
)


def naive_signalled() -> None:
    agrees(signalled, twice)
