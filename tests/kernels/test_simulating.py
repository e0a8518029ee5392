"""Tests of kernels that are simulated fail where a kernel leaves something behind."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.simulating import simulating


def call(body: Any, *scratch: Any) -> Any:
    x = jnp.ones((8, 128))
    spec = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        body,
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=scratch,
    )(x)


def forgets_to_wait(x_ref: Any, o_ref: Any, arrived: Any) -> None:
    pltpu.make_async_copy(x_ref, o_ref, arrived).start()


def forgets_a_signal(x_ref: Any, o_ref: Any, done: Any) -> None:
    o_ref[...] = x_ref[...]
    pl.semaphore_signal(done, 1)


def doubles(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def forgets_a_row(x_ref: Any, o_ref: Any) -> None:
    o_ref[1:] = x_ref[1:]


@pytest.mark.parametrize(
    ("body", "semaphore"),
    [
        (forgets_to_wait, pltpu.SemaphoreType.DMA),
        (forgets_a_signal, pltpu.SemaphoreType.REGULAR),
    ],
)
def test_what_is_left_over_is_an_error(body: Any, semaphore: Any) -> None:
    with pytest.raises(AssertionError), simulating():
        call(body, semaphore)


def test_values_can_be_looked_at_and_differentiated() -> None:
    with simulating():
        np.testing.assert_array_equal(call(doubles), np.full((8, 128), 2))
        assert jax.grad(lambda x: (x * x).sum())(jnp.float32(3)) == 6
        assert np.isnan(call(forgets_a_row)[0]).all()
