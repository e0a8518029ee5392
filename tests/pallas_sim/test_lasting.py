"""What outlives a kernel: semaphores that a kernel returns, or that are made outside of any."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from pallas_sim import simulate

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
SEEDS = [0, 1, 2]


def returned() -> Any:
    """A semaphore that a kernel returns."""
    mesh = plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
    return pl.kernel(lambda _: None, out_type=pltpu.SemaphoreType.DMA(()), mesh=mesh)()


def made() -> Any:
    """A semaphore that is made where no kernel is."""
    return jax.freeze(pl.empty_ref_like(pltpu.SemaphoreType.DMA(())))


def copied(x: Any, semaphore: Any, *, waits: bool) -> Any:
    """A copy that one kernel starts and the next one waits for."""
    mesh = plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
    arrived = jax.new_ref(semaphore(), memory_space=pltpu.SEMAPHORE)
    x_ref, y_ref = jax.new_ref(x), pl.empty_ref_like(pltpu.HBM(x.shape, x.dtype))

    @pl.kernel(out_type=(), mesh=mesh)
    def _start():
        pltpu.make_async_copy(x_ref, y_ref, arrived).start()

    _start()
    if waits:

        @pl.kernel(out_type=(), mesh=mesh)
        def _wait():
            pltpu.make_async_copy(x_ref, y_ref, arrived).wait()

        _wait()
    return y_ref[...]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("semaphore", [returned, made])
def test_a_later_kernel_waits_for_a_copy(semaphore, seed):
    run = simulate(lambda x: copied(x, semaphore, waits=True), X, target="v5p", seed=seed)
    np.testing.assert_array_equal(run.values, X)
    assert run.findings == ()


@pytest.mark.parametrize("semaphore", [returned, made])
def test_no_kernel_waits_for_a_copy(semaphore):
    run = simulate(lambda x: copied(x, semaphore, waits=False), X, target="v5p")
    assert any("not waited for" in each.message for each in run.findings)


def test_a_semaphore_that_is_returned_to_the_caller():
    """What becomes of it is up to the caller, who may wait."""

    def start(x):
        def body(x_ref, o_ref, done):
            pltpu.make_async_copy(x_ref, o_ref, done).start()

        hbm, semaphore = pltpu.HBM(x.shape, x.dtype), pltpu.SemaphoreType.DMA(())
        mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
        return pl.kernel(body, out_type=(hbm, semaphore), mesh=mesh)(x)

    assert simulate(lambda x: start(x), X).findings == ()
    # Here nobody can wait any more.
    assert [finding.kind for finding in simulate(lambda x: start(x)[0], X).findings] == ["unwaited"]


@pytest.mark.parametrize("seed", SEEDS)
def test_references_that_bodies_capture(seed):
    """One kernel starts a copy between references of its surroundings; the next one waits."""
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)

    def captured(x):
        def main(refs):
            x_ref, y_ref = refs

            def start(arrived):
                pltpu.make_async_copy(x_ref, y_ref, arrived).start()

            def wait(arrived):
                pltpu.make_async_copy(x_ref, y_ref, arrived).wait()

            out = pltpu.SemaphoreType.DMA(())
            arrived = pl.pallas_call(start, out_shape=out, out_specs=semaphore)()
            pl.pallas_call(wait, out_shape=(), in_specs=[semaphore])(arrived)

        return pl.run_state(main)((x, jnp.zeros_like(x)))[1]

    run = simulate(captured, X, seed=seed)
    np.testing.assert_array_equal(run.values, X)
    assert run.findings == ()


def test_a_random_key_in_memory():
    """References to keys, which kernels copy and load."""

    def through(key):
        def main(refs):
            key_ref, o_ref = refs

            @pl.kernel(out_type=(), mesh=pltpu.TensorCoreMesh(axis_name="core"))
            def _draw():
                def scoped(key_smem, o_vmem):
                    pltpu.sync_copy(key_ref, key_smem)
                    o_vmem[...] = jax.random.uniform(key_smem[...], shape=o_ref.shape)
                    pltpu.sync_copy(o_vmem, o_ref)

                pl.run_scoped(
                    scoped, pltpu.SMEM((), key_ref.dtype), pltpu.VMEM(o_ref.shape, o_ref.dtype)
                )

            _draw()

        return pl.run_state(main)((key, jnp.zeros((8, 128))))[1]

    draws = [
        simulate(through, pltpu.to_pallas_key(jax.random.key(seed, impl="rbg"))).values
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert 0.4 < draws[0].mean() < 0.6
