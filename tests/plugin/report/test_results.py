"""``--pallas-results``."""

from __future__ import annotations

import json
import os
from importlib import metadata

import pytest

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=2",
         "--pallas-checks=forward,determinism")  # fmt: skip


@pytest.fixture
def suite(project):
    """Two specs, of which the first is wrong."""
    project.specs('name="bad", kernel=add_off', 'name="good", kernel=add')
    return project


def read(project, name="results.json"):
    return json.loads((project.path / name).read_text())


def test_the_document_has_schema_environment_options_and_records(suite):
    result = suite.run(*SUITE, "--pallas-results=results.json", "--pallas-seed=5")
    assert "4 records written to results.json" in result.stdout.str()
    document = read(suite)
    assert document["schema"] == 2
    assert document["environment"]["jax"] == metadata.version("jax")
    assert document["options"]["seed"] == 5
    assert document["options"]["backends"] == ["tpu-sim"]
    bad, _, good, repeated = document["records"]
    assert {name: good[name] for name in ("test", "kernel", "family", "check", "backend")} == {
        "test": "specs.py::good-forward[tpu-sim]",
        "kernel": "good",
        "family": "kernels",
        "check": "forward",
        "backend": "tpu-sim",
    }
    assert (good["outcome"], good["message"], good["replay"]) == ("passed", "", "")
    assert (good["examples"], good["seed"]) == (2, 5)
    assert good["error"] is not None
    assert good["multiple"] is not None
    assert good["seconds"] >= good["kernel_seconds"] > 0
    assert repeated["error"] is None
    assert bad["outcome"] == "failed"
    assert bad["message"].startswith("bad: forward on tpu-sim is wrong\n")
    assert bad["replay"].startswith("pytest ")
    assert " --pallas-suite=specs --pallas-backend=tpu-sim " in bad["replay"]
    file, _, line = bad["source"].rpartition(":")
    assert file == str(suite.path / "kernels.py")
    assert "def add_off(" in (suite.path / "kernels.py").read_text().splitlines()[int(line) - 1]
    assert good["source"] == ""


def test_the_failures_alone_are_a_short_document(suite):
    options = ("--pallas-results=results.json", "--pallas-failures=failures.json")
    result = suite.run(*SUITE, *options)
    assert "1 failure written to failures.json" in result.stdout.str()
    document, whole = read(suite, "failures.json"), read(suite)
    assert document["schema"] == whole["schema"]
    counts = {name: count for name, count in document["counts"].items() if count}
    assert counts == {"failed": 1, "passed": 3}
    [failure] = document["failures"]
    record = whole["records"][0]
    assert failure == {name: record[name] for name in failure}
    assert {"test", "source", "message", "replay", "seed"} <= failure.keys()
    assert not {"pictures", "explanation", "inputs", "stopped_by"} & failure.keys()


def test_a_test_that_dies_has_its_kernel_in_the_results(project):
    project.write(
        kernel_that_dies="""
        import os

        def dies(x):
            os._exit(3)
        """,
        test_it="""
        import numpy as np
        from kernel_that_dies import dies

        def test_dies(pallas_check):
            pallas_check(dies, np.ones(8, np.float32), reference=lambda x: x)
        """,
    )
    [record] = project.records("--pallas-isolate=always", "--pallas-backend=tpu-sim", spawn=True)
    assert record["outcome"] == "failed"
    assert record["source"] == f"{project.path / 'kernel_that_dies.py'}:4"


def test_the_ini_value_names_the_file(suite):
    suite.ini(pallas_results="from_ini.json")
    suite.run(*SUITE)
    assert len(read(suite, "from_ini.json")["records"]) == 4


def test_written_when_the_run_stops_early(suite):
    suite.run(*SUITE, "-x", "--pallas-results=results.json")
    (record,) = read(suite)["records"]
    assert record["outcome"] == "failed"


def test_written_when_the_run_is_interrupted(suite):
    suite.write(
        test_stop="""
        def test_stop():
            raise KeyboardInterrupt
        """
    )
    result = suite.spawn("specs.py", "test_stop.py", *SUITE, "--pallas-results=results.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert len(read(suite)["records"]) == 4


def test_written_over_older_ones(suite):
    (suite.path / "results.json").write_text("older, and much longer than that")
    suite.run(*SUITE, "-k", "good", "--pallas-results=results.json")
    assert len(read(suite)["records"]) == 2
    assert [p.name for p in suite.path.iterdir() if "results" in p.name] == ["results.json"]


def test_a_run_without_kernels(project):
    project.write(test_a="def test_a(): pass")
    project.run("--pallas-results=results.json").assert_outcomes(passed=1)
    assert read(project)["records"] == []


@pytest.mark.parametrize("path", ["missing/results.json", ".", "kernels.py/results.json"])
def test_an_unwritable_file_is_a_usage_error(suite, path):
    result = suite.run(*SUITE, f"--pallas-results={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    assert "--pallas-results=" in text
    assert "cannot write the file" in text


def test_a_path_that_becomes_unwritable(suite):
    """What was found is still shown."""
    (suite.path / "out").mkdir()
    suite.write(
        conftest="""
        import shutil

        def pytest_pallas_record(config, record):
            shutil.rmtree("out", ignore_errors=True)
        """
    )
    result = suite.run(*SUITE, "--pallas-results=out/results.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in text
    assert "1 ok 1 FAILED" in text
    assert f"--pallas-results=out{os.sep}results.json: cannot write the file" in text


def test_outcomes_of_tests_of_ones_own(project):
    project.write(
        test_own="""
        import numpy as np
        import pytest
        from kernels import *

        X = np.ones((8, 128), np.float32)

        def test_pass(pallas_check):
            pallas_check(add, X, X, reference=reference)

        def test_fail(pallas_check):
            pallas_check(add, X, X, reference=reference)
            pallas_check(add_off, X, X, reference=reference)

        def test_skip(pallas_check):
            pallas_check(add, X, X, reference=reference)
            pytest.skip("no time")

        def test_no_kernel(pallas_backend): pass
        """
    )
    records = project.records("--pallas-backend=tpu-sim")
    assert [(r["test"].partition("::")[2], r["kernel"], r["outcome"]) for r in records] == [
        ("test_pass[tpu-sim]", "add", "passed"),
        ("test_fail[tpu-sim]", "add", "passed"),
        ("test_fail[tpu-sim]", "add_off", "failed"),
        ("test_skip[tpu-sim]", "add", "skipped"),
    ]
