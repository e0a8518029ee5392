"""``wgmma`` and ``mma``: products that run beside their warpgroup, and what they read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

RANDOM = np.random.default_rng(0)
A = RANDOM.integers(-4, 5, (64, 128)).astype(np.float16)
B = RANDOM.integers(-4, 5, (128, 64)).astype(np.float16)
PRODUCT = A.astype(np.float32) @ B.astype(np.float32)
SEEDS = [0, 1, 2, 3]
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def product(*, wrong: str = "") -> Any:
    """``a @ b`` in two steps of the contracted dimension, through two buffers."""

    def body(a_gmem, b_gmem, o_gmem, a_smem, b_smem, arrived):
        def load(step: int) -> None:
            ks = pl.ds(64 * step, 64)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, ks], a_smem.at[step], arrived.at[step])
            plgpu.copy_gmem_to_smem(b_gmem.at[ks], b_smem.at[step], arrived.at[step])

        def multiply(acc):
            for step in range(2):
                load(step)
                if wrong != "no barrier":
                    plgpu.barrier_wait(arrived.at[step])
                if wrong in ("written by threads", "committed"):
                    a_smem[step] = a_smem[step] * 1
                if wrong == "committed":
                    plgpu.commit_smem()
                plgpu.wgmma(acc, a_smem.at[step], b_smem.at[step])
                if wrong == "overwritten":
                    plgpu.copy_gmem_to_smem(a_gmem.at[:, pl.ds(0, 64)], a_smem.at[0], arrived.at[2])
                    plgpu.barrier_wait(arrived.at[2])
                if wrong == "overwritten by threads":
                    b_smem[step] = jnp.zeros((64, 64), jnp.float16)
            return plgpu.wgmma_accumulator_load(acc, wait_n=None if wrong == "no wait" else 0)

        o_gmem[...] = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((64, 64)))
        if wrong == "no wait":
            plgpu.wgmma_wait(0)
        if wrong == "no barrier":
            for step in range(2):
                plgpu.barrier_wait(arrived.at[step])

    def function(a, b):
        operands = plgpu.SMEM((2, 64, 64), jnp.float16, transforms=TILED)
        arrivals = 1 if wrong == "overwritten" else 2
        third = plgpu.Barrier(num_arrivals=2, num_barriers=3) if arrivals == 2 else None
        barriers = third or plgpu.Barrier(num_arrivals=1, num_barriers=3)
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
            scratch_types=[operands, operands, barriers],
        )(a, b)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", ["", "committed"])
def test_a_product(seed, step):
    found = simulate(product(wrong=step), A, B, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, PRODUCT)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_an_accumulator_that_is_not_waited_for(seed):
    found = simulate(product(wrong="no wait"), A, B, target="h100", seed=seed)
    (race,) = found.findings
    assert race.kind == "race"
    assert race.ref == "acc"
    assert {access.by for access in race.accesses} == {"", "the wgmma"}
    if seed == 0:
        assert not found.values.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_operand_that_threads_overwrite(seed):
    found = simulate(product(wrong="overwritten by threads"), A, B, target="h100", seed=seed)
    races = [each for each in found.findings if each.kind == "race"]
    assert {race.ref for race in races} == {"b_smem"}
    if seed == 0:
        assert not np.array_equal(found.values, PRODUCT)


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_that_have_not_arrived(seed):
    found = simulate(product(wrong="no barrier"), A, B, target="h100", seed=seed)
    races = [each for each in found.findings if each.kind == "race"]
    assert {race.ref for race in races} == {"a_smem", "b_smem"}


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_that_are_not_committed(seed):
    found = simulate(product(wrong="written by threads"), A, B, target="h100", seed=seed)
    (race,) = found.findings
    assert "commit_smem" in race.message
    assert race.accesses[0].by == "the wgmma"


def refilled(left: int) -> Any:
    """A ring of two buffers; a buffer is filled again once ``left`` products may be under way."""
    steps = 4

    def body(a_gmem, b_gmem, o_gmem, a_smem, b_smem, arrived):
        def load(step: Any, slot: Any) -> None:
            ks = pl.ds(64 * jax.lax.rem(step, 2), 64)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, ks], a_smem.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(b_gmem.at[ks], b_smem.at[slot], arrived.at[slot])

        def multiply(acc):
            load(0, 0)

            def step_of(step, _):
                slot = jax.lax.rem(step, 2)
                plgpu.barrier_wait(arrived.at[slot])
                plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(left)
                pl.when(step + 1 < steps)(lambda: load(step + 1, 1 - slot))

            jax.lax.fori_loop(0, steps, step_of, None)
            return acc[...]

        o_gmem[...] = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((64, 64)))

    def function(a, b):
        operands = plgpu.SMEM((2, 64, 64), jnp.float16, transforms=TILED)
        barriers = plgpu.Barrier(num_arrivals=2, num_barriers=2)
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
            scratch_types=[operands, operands, barriers],
        )(a, b)

    return function


@pytest.mark.parametrize("seed", SEEDS)
def test_buffers_that_are_filled_again(seed):
    right = simulate(refilled(1), A, B, target="h100", seed=seed)
    np.testing.assert_array_equal(right.values, 2 * PRODUCT)
    assert kinds(right) == []
    early = simulate(refilled(2), A, B, target="h100", seed=seed)
    races = [each for each in early.findings if each.kind == "race"]
    assert {race.ref for race in races} == {"a_smem", "b_smem"}
    engines = {"the TMA copy", "the wgmma"}
    assert all({access.by for access in race.accesses} == engines for race in races)


def test_an_operand_in_registers():
    def body(a_gmem, b_gmem, o_gmem, b_smem, arrived):
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, arrived)
        plgpu.barrier_wait(arrived)

        def multiply(acc):
            plgpu.wgmma(acc, plgpu.load(a_gmem, layout=plgpu.Layout.WGMMA, optimized=False), b_smem)
            return acc[...]

        o_gmem[...] = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((64, 64)))

    def function(a, b):
        operand = plgpu.SMEM((128, 64), jnp.float16, transforms=TILED)
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
            scratch_types=[operand, plgpu.Barrier()],
        )(a, b)

    found = simulate(function, A, B, target="h100")
    np.testing.assert_array_equal(found.values, PRODUCT)
    assert kinds(found) == []


@pytest.mark.parametrize("target", ["a100", "b200"])
def test_chips_without_wgmma(target):
    def body(o_gmem, a_smem):
        def multiply(acc):
            plgpu.wgmma(acc, a_smem, a_smem)
            return acc[...]

        o_gmem[...] = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((64, 64)))

    def function():
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
            scratch_types=[plgpu.SMEM((64, 64), jnp.float16, transforms=TILED)],
        )()

    with pytest.raises(SimulationError, match="wgmma is an instruction of Hopper"):
        simulate(function, target=target)


def single(x: Any, y: Any, out: Any) -> Any:
    """``x @ y`` in one ``wgmma``."""
    shape = (x.shape[0], y.shape[1])

    def body(x_ref: Any, y_ref: Any, o_ref: Any, x_smem: Any, y_smem: Any, arrived: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, x_smem, arrived)
        plgpu.copy_gmem_to_smem(y_ref, y_smem, arrived)
        plgpu.barrier_wait(arrived)

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, x_smem, y_smem)
            return acc[...]

        o_ref[...] = pl.run_scoped(multiply, plgpu.ACC(shape, out))

    buffers = [plgpu.SMEM(operand.shape, operand.dtype) for operand in (x, y)]
    types = [*buffers, plgpu.Barrier(num_arrivals=2)]
    call = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(shape, out), scratch_types=types)
    return simulate(call, x, y, target="h100").values


@pytest.mark.parametrize(
    ("sizes", "dtype", "out", "message"),
    [
        ((32, 64, 64), "float16", "float32", r"\[32, 64\]: its rows must be a multiple of 64"),
        ((96, 64, 64), "float16", "float32", r"\[96, 64\]: its rows must be a multiple of 64"),
        ((64, 64, 12), "float16", "float32", "its columns a multiple of 8"),
        ((64, 64, 24), "float16", "float32", "must be a multiple of 32 bytes"),
        ((64, 64, 272), "float16", "float32", "at most 256"),
        ((64, 8, 64), "float16", "float32", "a row in memory has 8 elements of float16"),
        ((64, 64, 64), "bfloat16", "float16", "into float16: its sums are float32"),
        ((64, 64, 64), "int8", "int32", "of int8, they must be along the terms, axis 0"),
        ((64, 64, 64), "int16", "int32", "its operands are bfloat16, "),
    ],
)
def test_products_that_no_instruction_computes(sizes, dtype, out, message):
    """``gpu-compile:h100`` refuses each of them."""
    rows, terms, columns = sizes
    x, y = np.ones((rows, terms), dtype), np.ones((terms, columns), dtype)
    with pytest.raises(SimulationError, match=message):
        single(x, y, np.dtype(out))
