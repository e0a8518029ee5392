"""What the tests of checks ask with: contexts of a kernel that doubles its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.draw.arguments import Arguments


def twice(x: jax.Array) -> jax.Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.fixture
def context_of() -> Callable[..., CheckContext]:
    """``context_of(kernel, reference, ...)`` on one float32[8, 128], fields of ``CheckContext``."""

    def make(kernel: Any = twice, reference: Any = lambda x: jnp.multiply(x, 2), **rest: Any):
        x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
        given = {"arguments": Arguments((x,)), "backend": tpu_sim()} | rest
        return CheckContext(kernel=kernel, reference=reference, **given)

    return make


@pytest.fixture
def doubled() -> Callable[[jax.Array], jax.Array]:
    return twice


@pytest.fixture
def context():
    """``context(kernel, *args)`` on the simulator, if no other backend is named."""

    def made(kernel, *args, backend=None, devices=1, **more):
        return CheckContext(
            kernel=kernel,
            reference=None,
            arguments=Arguments(args),
            backend=backend or tpu_sim(),
            runs=Runs(),
            settings=RunSettings(devices=devices, timeout=30),
            **more,
        )

    return made
