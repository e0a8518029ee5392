"""``--pallas-timeout``."""

from __future__ import annotations

import pytest

DEADLOCK = """
    import jax
    import numpy as np
    import pytest
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def _wait(x_ref, o_ref, semaphore):
        last = jax.lax.while_loop(lambda one: one == 1, lambda one: x_ref[0, 0], x_ref[0, 0])
        o_ref[...] = x_ref[...] * last

    def waits(x):
        return pl.pallas_call(
            _wait,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.SemaphoreType.REGULAR],
        )(x)

    X = np.ones((8, 128), np.float32)

    {mark}
    def test_waits(pallas_run):
        pallas_run(waits, X)

    def test_after(pallas_run):
        from kernels import add

        assert (pallas_run(add, X, X) == 2).all()
"""


@pytest.mark.parametrize(
    ("flag", "mark"), [("1", ""), ("50", "@pytest.mark.pallas(timeout=1)")], ids=["option", "mark"]
)
def test_a_deadlock_ends_and_the_run_goes_on(project, flag, mark):
    project.write(test_waits=DEADLOCK.format(mark=mark))
    result = project.run("--pallas-backend=tpu-interpret", f"--pallas-timeout={flag}")
    result.assert_outcomes(failed=1, passed=1)
    assert "the kernel did not finish within 1 s" in result.stdout.str()
    assert "semaphore, barrier or DMA" in result.stdout.str()


ENDLESS = DEADLOCK.replace(
    "            scratch_shapes=[pltpu.SemaphoreType.REGULAR],\n", ""
).replace("o_ref, semaphore", "o_ref")


@pytest.mark.parametrize(
    ("flag", "mark"), [("1", ""), ("50", "@pytest.mark.pallas(timeout=1)")], ids=["option", "mark"]
)
def test_a_loop_ends_on_the_simulator_and_the_run_goes_on(project, flag, mark):
    project.write(test_waits=ENDLESS.format(mark=mark))
    result = project.run(f"--pallas-timeout={flag}")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.re_match_lines(
        [r".*still not traced and simulated after 1 s; .*--pallas-timeout, in _wait at .*:\d+"]
    )
