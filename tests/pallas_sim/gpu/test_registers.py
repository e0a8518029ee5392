"""Registers that do not suffice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import DeadlockError, SimulationError

SHAPE = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def with_accumulators(*shapes: tuple[int, int], limit: int = 0, **mesh: Any) -> Any:
    """A kernel whose warpgroups have accumulators of these shapes at the same time."""

    def body(o):
        if limit:
            plgpu.set_max_registers(limit, action="decrease")

        def inner(*accs):
            return [acc[...] for acc in accs]

        pl.run_scoped(inner, *(plgpu.ACC(shape, jnp.float32) for shape in shapes))
        o[...] = jnp.zeros((8, 128), jnp.float32)

    return plgpu.kernel(body, out_type=SHAPE, **mesh)


def messages(function: Any) -> list[str]:
    found = simulate(function, target="h100").findings
    assert {each.kind for each in found} <= {"spill", "race"}  # all warpgroups write the output
    return [each.message for each in found if each.kind == "spill"]


THREE = {"num_threads": 3, "thread_name": "w"}


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([(64, 256)], {}),
        ([(64, 256), (64, 240)], {}),
        ([(64, 256)], THREE),
        ([(64, 64)], {"limit": 32}),
    ],
)
def test_accumulators_fit(shapes, options):
    assert messages(with_accumulators(*shapes, **options)) == []


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        ([(128, 256)], {}, "take 256 registers of each thread, and it has 255"),
        ([(64, 256), (64, 256)], {}, "take 256 registers of each thread, and it has 255"),
        ([(64, 256), (64, 128)], THREE, "has 168 (3 warpgroups share 65,536)"),
        ([(64, 72)], {"limit": 32}, "take 36 registers of each thread, and it has 32"),
    ],
)
def test_accumulators_do_not_fit(shapes, options, words):
    (message,) = messages(with_accumulators(*shapes, **options))
    assert words in message


def divided(few: int, many: int) -> Any:
    """One warpgroup keeps ``few`` registers, two others ask for ``many``."""

    def body(o):
        warpgroup = lax.axis_index("w")

        @pl.when(warpgroup == 2)
        def _few():
            plgpu.set_max_registers(few, action="decrease")

        @pl.when(warpgroup < 2)
        def _many():
            plgpu.set_max_registers(many, action="increase")
            o[warpgroup] = jnp.zeros((128,), jnp.float32)

    return plgpu.kernel(body, out_type=SHAPE, **THREE)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("few", "many"), [(40, 232), (32, 240)])
def test_the_registers_of_a_block_are_divided(few, many, seed):
    assert not simulate(divided(few, many), target="h100", seed=seed).findings


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_registers_than_the_block_has(seed):
    with pytest.raises(DeadlockError, match=r"the registers of its block.*needs 240"):
        simulate(divided(40, 240), target="h100", seed=seed)


def test_a_number_that_ptx_does_not_take():
    with pytest.raises(SimulationError, match="takes 24 to 256 registers, not 16"):
        simulate(divided(16, 232), target="h100")


def test_registers_are_given_back_at_the_end_of_a_scope():
    def body(o):
        for _ in range(2):
            acc = pl.run_scoped(lambda acc: acc[...], plgpu.ACC((64, 256), jnp.float32))
        o[...] = acc[:8, :128]

    found = simulate(plgpu.kernel(body, out_type=SHAPE), target="h100")
    assert not found.findings
    np.testing.assert_array_equal(found.values, np.zeros((8, 128)))
