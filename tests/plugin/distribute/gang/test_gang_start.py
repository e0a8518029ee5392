"""Gangs that cannot start: each says why, and which process it is."""

import concurrent.futures
import time

import pytest

from pytest_pallas.distribute.gang import plugin as supervisor

RUN = ("--pallas-processes=2", "-p", "no:cacheprovider")
PASSES = """
    def test_passes():
        pass
"""


def errors(result):
    """The last lines of a run that was refused."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    return result.stderr.str()


def test_a_process_that_never_starts_is_named(project, monkeypatch):
    """The time limit is over once the other process has collected."""
    project.write(
        test_one=PASSES,
        conftest="""
            import os, time

            if os.environ.get("PYTEST_PALLAS_PROCESS") == "1":
                time.sleep(1000)

            def pytest_collection_finish():
                open("collected", "w").close()
        """,
    )

    def limit(futures, timeout):
        assert timeout == 120
        while not (project.path / "collected").exists():
            assert not any(future.done() for future in futures)
            time.sleep(0.01)
        return concurrent.futures.wait(futures, timeout=0)

    monkeypatch.setattr(supervisor, "wait", limit)
    text = errors(project.run(*RUN, "--pallas-join-timeout=60"))
    assert "process 1 (" in text
    assert "did not start within 120 s (step: start)" in text
    assert "waiting for it: process 0" in text


def test_different_collections_are_compared_before_anything_runs(project):
    project.write(
        test_one="""
            import os
            import pytest

            HERE = int(os.environ["PYTEST_PALLAS_PROCESS"])

            @pytest.mark.parametrize("number", range(2 + HERE))
            def test_number(number):
                pass
        """
    )
    text = errors(project.run(*RUN))
    assert "process 1 (" in text
    assert "it collected other tests than process 0 (" in text
    assert "only in process 1: test_one.py::test_number[2]" in text


def test_an_error_of_collection_is_reported_once(project):
    project.write(test_one="import nothing_of_this_name")
    result = project.run(*RUN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E   ModuleNotFoundError*", "*Interrupted: 1 error*"])


def test_a_wrong_mark_fails_its_test_only(project):
    project.write(
        test_one="""
            import pytest

            @pytest.mark.pallas(timeout="soon")
            def test_marked(pallas_run):
                pass

            def test_passes():
                pass
        """
    )
    result = project.run(*RUN, "--pallas-backend=tpu-sim")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*mark pallas(timeout=...): must be a number of seconds*"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pallas-processes=3",), "3 processes cannot divide 8 simulated devices: give "),
        (("--pallas-processes=16",), "--pallas-devices=16"),
        (("--pallas-processes=2", "-n2"), "leave out -n of pytest-xdist"),
        (("--pallas-processes=2", "--pdb"), "a debugger needs a terminal"),
        (("--pallas-processes=2", "--pallas-mutate=all"), "--pallas-mutate with --pallas-proc"),
        (("--pallas-processes=2", "--pallas-distributed=auto"), "give either"),
        (("--pallas-processes=2", "--pallas-isolate=always"), "leave out --pallas-isolate=always"),
        (("--pallas-distributed=auto",), "JAX finds no TPU pod, Slurm, Open MPI or Kubernetes"),
        (("--pallas-distributed=2/2@here:1",), "must be auto, or I/N@HOST:PORT"),
        (
            ("--pallas-distributed=1/2@127.0.0.1:9", "--pallas-join-timeout=0.2"),
            "host 1 of 2 cannot reach host 0 at 127.0.0.1:9 within 0.2 s",
        ),
    ],
)
def test_wrong_options_are_usage_errors(project, options, message):
    project.write(test_one=PASSES)
    assert message in errors(project.run(*options))


def test_a_backend_that_is_missing_in_the_processes(project):
    project.write(test_one=PASSES)
    text = errors(project.run(*RUN, "--pallas-backend=gpu"))
    assert "backend 'gpu' is not available" in text
