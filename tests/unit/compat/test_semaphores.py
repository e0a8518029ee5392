"""``pl.semaphore_read`` in the TPU interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import compat


@pytest.fixture(autouse=True)
def simulated() -> Any:
    with compat.missing_operations(), pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        yield


def test_counts_follow_signals_and_waits_of_each_semaphore():
    def body(o_ref: Any, semaphores: Any) -> None:
        pl.semaphore_signal(semaphores.at[0], 5)
        pl.semaphore_signal(semaphores.at[1], 2)
        o_ref[0] = pl.semaphore_read(semaphores.at[0])
        pl.semaphore_wait(semaphores.at[0], 3)
        for place in (1, 2):
            o_ref[place] = pl.semaphore_read(semaphores.at[place - 1])
        for place, left in enumerate((2, 2)):
            pl.semaphore_wait(semaphores.at[place], left)
        o_ref[3] = pl.semaphore_read(semaphores.at[0])

    read = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((4,), jnp.int32),
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR((2,))],
    )()
    np.testing.assert_array_equal(read, [5, 2, 2, 0])


def test_a_loop_until_a_semaphore_is_signalled():
    def body(o_ref: Any, semaphore: Any) -> None:
        def more(rounds: Any) -> Any:
            pl.semaphore_signal(semaphore)
            return rounds + 1

        o_ref[0] = jax.lax.while_loop(lambda _: pl.semaphore_read(semaphore) < 7, more, 0)
        pl.semaphore_wait(semaphore, 7)

    rounds = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )()
    assert int(rounds[0]) == 7
