"""--pallas-cost: a change that makes the code of a kernel dearer fails, without hardware."""

import json

import pytest

from pytest_pallas.compile import libtpu

pytestmark = pytest.mark.skipif(libtpu.missing() is not None, reason=str(libtpu.missing()))

KERNELS = """
    import jax
    import numpy as np
    from jax.experimental import pallas as pl

    X = np.ones((64, 512), np.float32)

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] {operation}

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""
TEST = """
    from chips import *

    def test_it(pallas_check):
        pallas_check(kernel, X, reference=lambda x: x * 2)
"""


@pytest.fixture
def run(project):
    def run(operation, *args):
        project.write(chips=KERNELS.format(operation=operation), test_it=TEST)
        return project.run("--pallas-backend=tpu-compile:v6e", *args)

    run.project = project
    return run


def test_what_was_recorded_passes_and_more_fails_with_both_numbers(run):
    result = run("* 2", "--pallas-cost=record")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["costs of 1 programs recorded in pallas_costs.json"])
    [entry] = json.loads((run.project.path / "pallas_costs.json").read_text())["costs"]
    assert entry["kernel"] == "kernel"
    assert entry["cost"]["bundles"] > 0

    result = run("* 2", "--pallas-cost=compare")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["costs of 1 programs compared with pallas_costs.json"])

    result = run("** 7 / 3 + x_ref[...] ** 5", "--pallas-cost=compare")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*its code for v6e costs more than recorded: "
            f"* bundles, recorded {entry['cost']['bundles']:,} (+*",
            "script: none: it would not have the recorded costs to compare with",
        ]
    )
    dearer = run("** 7 / 3 + x_ref[...] ** 5", "--pallas-cost=compare", "--pallas-cost-limit=10000")
    dearer.assert_outcomes(passed=1)


def test_without_a_file_nothing_is_compared_and_a_usage_error_says_how(run):
    result = run("* 2", "--pallas-cost=compare")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no file *pallas_costs.json*--pallas-cost=record*"])


def test_what_was_never_recorded_is_named(run):
    (run.project.path / "costs.json").write_text('{"schema": 1, "costs": []}')
    result = run("* 2", "--pallas-cost=compare", "--pallas-cost-file=costs.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not in the file: 1 (kernel (v6e))*"])


def test_it_needs_a_compiling_backend(project):
    project.write(test_it="def test_it(): pass")
    result = project.run("--pallas-backend=tpu-sim", "--pallas-cost=record")
    result.assert_outcomes(passed=1)
    assert not (project.path / "pallas_costs.json").exists()
    result.stdout.fnmatch_lines(["*--pallas-cost=record: no kernel was compiled*"])
