"""Sessions of pytest in a program of several processes, each of which runs every test."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from pallas_test_support.gang_processes import Program

from pytest_pallas.distribute.gang.merging import ProcessResult, merge_processes
from pytest_pallas.record import from_json

pytestmark = pytest.mark.processes

BEGIN = """
import functools

import jax
import numpy as np
import pytest
from pallas_test_support.gang_cases import (
    double,
    doubled,
    doubled_but_in_process_1,
    raises_in_process_1,
    summed,
)
from hypothesis import given, settings, strategies as st

import pytest_pallas
from pytest_pallas import KernelSpec, strategies as pst

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
"""


def sessions(program: Program, folder: Path, text: str, *arguments: str) -> list[dict[str, Any]]:
    """The results of the processes for one module of tests."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    module = f"test_{folder.name.rstrip('0123456789')}"
    (folder / f"{module}.py").write_text(BEGIN + textwrap.dedent(text))
    (folder / "conftest.py").write_text("")
    options = ("--pallas-backend=interpret", "--pallas-database=none", "--pallas-max-examples=4")
    return program.values("gang_cases.py", "pytest_run", str(folder), *options, *arguments)


def outcomes(session: dict[str, Any]) -> dict[str, str]:
    return {name: outcome for name, (outcome, _) in session["tests"].items()}


def test_fixtures(two, tmp_path):
    text = """
        def test_parts(pallas_run, pallas_mesh):
            out = pallas_run(doubled, X, mesh=pallas_mesh(x=4))
            for shard in out.shards:
                np.testing.assert_array_equal(shard.data, 2 * X[shard.index])
            np.testing.assert_array_equal(out.gather(), 2 * X)
            with pytest.raises(pytest_pallas.GangError, match="only a part"):
                np.asarray(out)

        def test_copies(pallas_run, pallas_mesh):
            out = pallas_run(summed, X, mesh=pallas_mesh(x=4))
            np.testing.assert_allclose(out, 2 * X.reshape(4, 8, 128).sum(0))

        def test_own(pallas_check):
            out = pallas_check(double, X, reference=lambda x: 2 * x)
            assert isinstance(out, np.ndarray)

        def test_odd(pallas_mesh):
            pallas_mesh(x=3)

        def test_all_devices(pallas_devices):
            assert [device.process_index for device in pallas_devices] == [0, 0, 1, 1]

        def test_rng(pallas_rng, pallas_check):
            x = pallas_rng.standard_normal((8, 128)).astype(np.float32)
            pallas_check(double, x, reference=lambda x: 2 * x)

        def test_after_a_failure_in_one_process(pallas_check, pallas_mesh):
            pallas_check(
                doubled_but_in_process_1, X, mesh=pallas_mesh(x=4), reference=lambda x, mesh: 2 * x
            )

        def test_that_raises_in_one_process(pallas_run, pallas_mesh):
            pallas_run(raises_in_process_1, X, mesh=pallas_mesh(x=4))

        def test_that_is_skipped_in_one_process(pallas_run, pallas_mesh):
            if jax.process_index() == 1:
                pytest.skip("not here")
            pallas_run(doubled, X, mesh=pallas_mesh(x=4))

        def test_that_passes_in_the_end(pallas_run, pallas_mesh):
            pallas_run(summed, X, mesh=pallas_mesh(x=4))
    """
    first, second = sessions(two, tmp_path, text)
    both = {
        "test_parts[interpret]": "passed",
        "test_copies[interpret]": "passed",
        "test_own[interpret]": "passed",
        "test_odd[interpret]": "skipped",
        "test_all_devices[interpret]": "passed",
        "test_rng[interpret]": "passed",
        "test_after_a_failure_in_one_process[interpret]": "failed",
        "test_that_raises_in_one_process[interpret]": "failed",
        "test_that_is_skipped_in_one_process[interpret]": "failed",
        "test_that_passes_in_the_end[interpret]": "passed",
    }
    assert outcomes(first) == both
    assert outcomes(second) == {
        **both,
        "test_that_is_skipped_in_one_process[interpret]": "skipped",
    }
    message = first["tests"]["test_that_raises_in_one_process[interpret]"][1]
    assert "PeerError: process 1 failed, so this process stops here, too" in message
    message = first["tests"]["test_that_is_skipped_in_one_process[interpret]"][1]
    assert "process 1: end of the test" in message


SPECS = """
def spec(kernel, **more):
    return KernelSpec(
        name=kernel.__name__,
        kernel=kernel,
        reference=lambda x, *, mesh: 2 * x,
        meshes=({"x": 4},),
        inputs=lambda mesh: pst.arrays("m n", dtype="float32", dims={"m": [32, 64], "n": [128]}),
        **more,
    )

test_kernels = pytest_pallas.suite(spec(doubled), spec(doubled_but_in_process_1))
"""


def test_specs_with_a_mesh_and_their_records_as_one(two, tmp_path):
    """Of a kernel that is wrong in process 1, the merged record says so."""
    plain = sessions(two, tmp_path, SPECS, "--pallas-checks=forward,determinism")
    right, wrong = ("doubled-forward", "doubled_but_in_process_1-forward")
    for session in plain:
        assert outcomes(session)[f"{right}[interpret-x4]"] == "passed"
        assert outcomes(session)[f"{wrong}[interpret-x4]"] == "failed"
    results = [
        ProcessResult(
            process=process,
            host=f"host{process}",
            records=[from_json(fields) for fields in session["records"]],
        )
        for process, session in enumerate(plain)
    ]
    records = {(record.kernel, record.check): record for record in merge_processes(results)}
    passed = records["doubled", "forward"]
    assert (passed.outcome, passed.examples) == ("passed", 4)
    assert [host.outcome for host in passed.hosts] == ["passed", "passed"]
    failed = records["doubled_but_in_process_1", "forward"]
    assert failed.outcome == "failed"
    assert failed.message.startswith(
        "of 2 processes, process 1 (host1) failed; process 0 stopped because of process 1\n"
    )
    assert [host.because_of for host in failed.hosts] == [(1,), ()]
    assert failed.error == results[1].records[2].error


def test_an_expected_failure_in_one_process_is_one_in_all(two, tmp_path):
    text = SPECS.replace(
        "spec(doubled_but_in_process_1)",
        'spec(doubled_but_in_process_1, xfail={"interpret": pytest_pallas.ExpectedFailure('
        'reason="wrong in process 1", jax="0.12", checks=("forward",))})',
    )
    plain = sessions(two, tmp_path, text, "--pallas-checks=forward", "-k", "but_in_process_1")
    for session in plain:
        assert session["code"] == 0, session["printed"]
        assert outcomes(session) == {"doubled_but_in_process_1-forward[interpret-x4]": "skipped"}


def test_all_processes_draw_the_same(two, tmp_path):
    """Of specs, of ``@given``, and whatever the seed of the hash of strings is."""
    text = """
        import jax
        from pytest_pallas.draw.arguments import as_arguments

        SEEN = []

        def seen(*values):
            SEEN.append(repr([np.asarray(value).tobytes() for value in values]))

        @settings(max_examples=8)
        @given(call=pst.arrays("m k, k n", dtype="float32"), n=st.integers())
        def test_given(pallas_backend, call, n):
            seen(*as_arguments(call).args, n % 2**31)

        SPEC = KernelSpec(
            name="noted",
            kernel=double,
            reference=lambda x: seen(x) or 2 * x,
            inputs=pst.arrays("m n", dtype=pst.dtypes("float32", "bfloat16"), around=16),
        )
        test_kernels = pytest_pallas.suite(SPEC)

        def test_write(pallas_rng):
            seen(pallas_rng.random(4))
            folder = __file__.rpartition("/")[0]
            with open(f"{folder}/seen{jax.process_index()}", "w") as file:
                file.write("\\n".join(SEEN))
    """
    arguments = ("--pallas-checks=forward", "--pallas-max-examples=8", "--pallas-seed=7")
    results = sessions(two, tmp_path, text, *arguments)
    assert [session["code"] for session in results] == [0, 0], results[0]["printed"]
    first, second = [(tmp_path / f"seen{process}").read_text() for process in range(2)]
    assert first == second
    assert len(first.splitlines()) > 12


def test_failing_examples_are_those_of_the_first_process(two, tmp_path):
    """Each process has another database, as on hosts with disks of their own."""
    text = SPECS.replace("spec(doubled), ", "")
    arguments = ("--pallas-checks=forward", f"--pallas-database={tmp_path}/examples{{process}}")
    counts: list[int] = []
    for _ in range(2):
        for session in sessions(two, tmp_path, text, *arguments):
            [(outcome, message)] = session["tests"].values()
            assert outcome == "failed"
            assert "GangError" not in message
            [record] = session["records"]
            counts.append(record["examples"])
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    assert any((tmp_path / "examples0").rglob("*"))
    assert not any((tmp_path / "examples1").rglob("*"))


def test_a_failure_in_one_process_is_shrunk_in_all(two, tmp_path):
    """Process 1 is wrong from 24 rows on, in two ways; the smallest example is found."""
    text = """
        def wrong_if_long(x, *, mesh):
            out = doubled(x, mesh=mesh)
            if jax.process_index() == 1 and x.shape[0] > 120:
                raise ValueError("too long")
            if jax.process_index() == 1 and x.shape[0] > 20:
                return out + 1
            return out

        SPEC = KernelSpec(
            name="wrong_if_long",
            kernel=wrong_if_long,
            reference=lambda x, *, mesh: 2 * x,
            meshes=({"x": 4},),
            inputs=lambda mesh: pst.arrays(
                "m n", dtype="float32", dims={"m": [4, 8, 16, 24, 32, 64, 128, 256], "n": [128]}
            ),
        )
        test_kernels = pytest_pallas.suite(SPEC)
    """
    arguments = ("--pallas-checks=forward", "--pallas-max-examples=8")
    first, second = sessions(two, tmp_path, text, *arguments)
    for session in (first, second):
        [(outcome, message)] = session["tests"].values()
        assert outcome == "failed"
        assert "GangError" not in message
    [(_, message)] = second["tests"].values()
    assert "inputs    float32[24, 128]" in message
    [record] = second["records"]
    assert any("too long" in other["message"] for other in record["others"])


def test_goldens_are_refused(two, tmp_path):
    text = SPECS.replace(", spec(doubled_but_in_process_1)", "")
    arguments = ("--pallas-checks=forward", "--pallas-golden=record")
    for session in sessions(two, tmp_path, text, *arguments):
        [(outcome, message)] = session["tests"].values()
        assert outcome == "failed"
        assert "in a program of several processes each holds a part" in message


def test_a_reference_kernel_over_two_processes(two, tmp_path):
    """Sharded attention on a mesh that its spec draws in one process, too."""
    text = """
        from reference_kernels.parallel.sharded_attention_spec import SPEC

        test_kernels = pytest_pallas.suite(SPEC)
    """
    arguments = ("--pallas-max-examples=1", "--pallas-checks=forward")
    for session in sessions(two, tmp_path, text, *arguments):
        assert outcomes(session) == {
            "sharded_attention-forward[interpret-x-y]": "passed",
        }
