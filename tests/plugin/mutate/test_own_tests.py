"""``--pallas-mutate`` with tests of one's own."""

from __future__ import annotations

import pytest

from pytest_pallas import session as state

KERNELS = """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl


    def _body(x_ref, o_ref):
        o_ref[...] = jnp.where(x_ref[...] > 0.0, x_ref[...], 0.0)


    def relu(x):
        return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""

LOOSE = """
    import numpy as np
    import pytest
    from kernels import *

    def test_ones(pallas_run):
        x = np.ones((8, 128), np.float32)
        np.testing.assert_allclose(pallas_run(relu, x), x)
"""

STRICT = """
    import hypothesis.strategies as st
    import jax
    import pytest
    from hypothesis import given, settings
    from kernels import *
    from pytest_pallas import strategies as pst

    @settings(max_examples=3, database=None)
    @given(x=pst.arrays("m n", dtype="float32", dims={"m": [8], "n": [128]}, values="normal"))
    def test_drawn(pallas_check, x):
        pallas_check(relu, *x, reference=jax.nn.relu)
"""


def _statuses(records):
    found = {}
    for record in records:
        for each in record["mutants"]:
            found[f"{each['operator']}: {each['change']}"] = (each["status"], each["by"])
    return found


def test_a_test_of_ones_lets_masks_survive(project):
    project.write(kernels=KERNELS, test_loose=LOOSE)
    records = project.records("--pallas-mutate")
    found = _statuses(records)
    assert found["mask: dropped"][0] == "survived"
    assert found["mask: inverted"] == ("killed", "test_ones[tpu-sim]")
    assert found["store: dropped"][0] == "killed"


def test_a_mutant_is_caught_if_one_of_the_tests_catches_it(project):
    project.write(kernels=KERNELS, test_loose=LOOSE, test_strict=STRICT)
    result = project.run("--pallas-mutate")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["score 100.0 %: * mutants, * killed"])


def test_in_processes_of_their_own_on_an_interpreter(project):
    project.write(kernels=KERNELS, test_loose=LOOSE, test_strict=STRICT)
    result = project.run("--pallas-mutate", "--pallas-backend=tpu-sim", "--pallas-isolate=auto")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["score 100.0 %: * mutants, * killed"])


def test_without_the_option_nothing_is_mutated(project):
    project.write(kernels=KERNELS, test_loose=LOOSE)
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*mutants*")


def test_a_test_that_fails_is_not_mutated(project):
    project.write(kernels=KERNELS, test_loose=LOOSE.replace("(relu, x), x)", "(relu, x), x + 1)"))
    result = project.run("--pallas-mutate")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("score*")


def test_mutants_of_tests_run_under_xdist(project):
    project.write(kernels=KERNELS, test_loose=LOOSE, test_strict=STRICT)
    result = project.run("--pallas-mutate", "-n2", "--pallas-isolate=auto")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["score 100.0 %: * mutants, * killed"])


@pytest.mark.parametrize("args", [("--pallas-backend=tpu-interpret",), ("--pallas-isolate=auto",)])
def test_a_mutant_that_waits_for_ever_is_ended_and_caught(project, monkeypatch, args):
    """On the interpreter in time, on the simulator at once."""
    monkeypatch.setattr(state, "_MUTANT_SECONDS", 3.0)
    project.write(
        kernels="""
            import jax
            import jax.numpy as jnp
            from jax.experimental import pallas as pl
            from jax.experimental.pallas import tpu as pltpu


            def _body(x_ref, o_ref, sem):
                copy = pltpu.make_async_copy(x_ref, o_ref, sem)
                copy.start()
                copy.wait()


            def copy(x):
                anywhere = pl.BlockSpec(memory_space=pl.ANY)
                return pl.pallas_call(
                    _body,
                    in_specs=[anywhere],
                    out_specs=anywhere,
                    out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                    scratch_shapes=[pltpu.SemaphoreType.DMA],
                )(x)
        """,
        test_copy="""
            import numpy as np
            from kernels import *

            def test_copy(pallas_check):
                x = np.ones((8, 128), np.float32)
                pallas_check(copy, x, reference=lambda x: x, checks=["forward", "races"])
        """,
    )
    asked = ("--pallas-mutate", "--pallas-mutate-operators=start,wait", "--pallas-timeout=300")
    [*_, record] = project.records(*asked, *args)
    by = {f"{m['operator']}: {m['change']}": m for m in record["mutants"]}
    assert by["start: dropped"]["how"] == "DeadlockError"
    assert by["wait: dropped"]["status"] == "killed"
