"""``--pallas-trace``."""

from __future__ import annotations

import json

import pytest

ON_SIM = ("--pallas-backend=tpu-sim", "--pallas-trace=run.json")
SUITE = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-max-examples=2", *ON_SIM)

OWN = """
    import numpy as np
    from kernels import *

    X = np.ones((8, 128), np.float32)

    def test_checks(pallas_check):
        pallas_check(add, X, X, reference=reference)

    def test_runs(pallas_run):
        pallas_run(add, X, np.ones((8, 128), np.float32))
"""

RACES = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def _early(x_ref, y_ref, o_ref, buffer, semaphore):
    copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
    copy.start()
    o_ref[...] = buffer[...] + y_ref[...]
    copy.wait()

def early(x, y):
    return pl.pallas_call(
        _early,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec()],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x, y)
"""


def read(project):
    """What the file says of its run, and the names of the kernels in it."""
    document = json.loads((project.path / "run.json").read_text())
    kernels = [e["name"] for e in document["traceEvents"] if e.get("cat") == "kernel"]
    assert [path.name for path in project.path.glob(".run.json.*")] == []
    return document["otherData"], kernels


def refusal(result):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str() + result.stdout.str()
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    return line


def test_the_last_test_if_all_pass(project):
    project.write(test_own=OWN)
    result = project.run(*ON_SIM)
    result.assert_outcomes(passed=2)
    text = result.stdout.str()
    assert "timeline written to run.json (open it in https://ui.perfetto.dev)" in text
    assert "  of the last example of test_own.py::test_runs[tpu-sim]: add on tpu-sim" in text
    about, kernels = read(project)
    assert (about["test"], about["failed"]) == ("test_own.py::test_runs[tpu-sim]", False)
    assert len(kernels) == 1


def test_the_test_that_fails(project):
    project.specs('name="bad", kernel=add_off', 'name="good", kernel=add')
    result = project.run(*SUITE)
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "  of the failing example of specs.py::bad-forward[tpu-sim]: bad on tpu-sim" in text
    about, kernels = read(project)
    assert (about["kernel"], about["failed"]) == ("bad", True)
    assert about["drawn"].startswith("float32[8, 128], float32")  # the smallest that fails
    assert kernels == ["_off_body"]


def test_the_timeline_of_a_race_ends_with_the_race(project):
    project.specs('name="early", kernel=early')
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{RACES}\nSPEC_0"))
    words = [word for word in SUITE if "checks" not in word]
    result = project.run(*words, "--pallas-checks=none", "--pallas-sanitize=races")
    result.assert_outcomes(failed=1)
    document = json.loads((project.path / "run.json").read_text())
    assert [e["name"] for e in document["traceEvents"] if e.get("cat") == "start"]
    assert document["otherData"]["raised"].startswith("race on buffer: ")


def test_the_ini_value_names_the_file(project):
    project.ini(pallas_trace="run.json")
    project.write(test_own=OWN)
    project.run("--pallas-backend=tpu-sim", "-k", "checks").assert_outcomes(passed=1)
    assert read(project)[0]["test"] == "test_own.py::test_checks[tpu-sim]"


def test_nothing_that_is_simulated(project):
    project.write(test_own="def test_nothing():\n    pass\n")
    result = project.run(*ON_SIM)
    result.assert_outcomes(passed=1)
    assert "not written: no test ran a kernel on the simulator" in result.stdout.str()
    assert not (project.path / "run.json").exists()


def test_a_call_without_a_kernel(project):
    project.write(
        test_own="""
        import numpy as np

        def test_plain(pallas_run):
            try:
                pallas_run(lambda x: x + 1, np.ones((8, 128), np.float32))
            except Exception:
                pass
        """
    )
    text = project.run(*ON_SIM).stdout.str()
    assert "--pallas-trace=run.json: not written: " in text
    assert "test_own.py::test_plain[tpu-sim]" in text


def test_a_folder_that_is_not_there(project):
    line = refusal(project.run("--pallas-backend=tpu-sim", "--pallas-trace=none/run.json"))
    assert "--pallas-trace=none/run.json: cannot write the file" in line


def test_a_backend_that_simulates_nothing(project):
    line = refusal(project.run("--pallas-backend=interpret", "--pallas-trace=run.json"))
    assert line == (
        "ERROR: --pallas-trace=run.json: only simulators have timelines, and the backend is "
        "interpret; use --pallas-backend=tpu-sim or gpu-sim"
    )


def test_without_the_option_no_run_is_kept(project):
    project.write(
        test_own=OWN,
        conftest="""
        from pytest_pallas.pytest_session import current

        def pytest_runtest_teardown(item):
            assert current(item.config).ran is None
        """,
    )
    project.run("--pallas-backend=tpu-sim").assert_outcomes(passed=2)
