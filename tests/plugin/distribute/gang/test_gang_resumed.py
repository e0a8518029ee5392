"""A gang whose reporting process is killed is taken up again, by all hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_pallas.distribute.gang.hosts import free_port

TESTS = """
import os, signal, time
import jax

def test_passes():
    assert jax.process_count() == 2

def test_fails_on_the_second():
    assert jax.process_index() == 0

def test_kills_the_reporting_process():
    if os.path.exists("kill") and jax.process_index() == 0:
        os.unlink("kill")
        os.kill(int(os.environ["PYTEST_PALLAS_SUPERVISOR"]), signal.SIGKILL)
        time.sleep(60)

def test_last():
    assert jax.process_count() == 2
"""


def run(path, *options):
    """Run pytest on one host for each of ``places``; what they printed, and their statuses."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"]
    # one command line, also for a run that was not begun yet
    files = ["--pallas-results=results.json", "--pallas-resume=results.json"]
    hosts = [
        subprocess.Popen(
            [*command, *files, "--pallas-backend=interpret", option],
            cwd=path,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for option in options
    ]
    texts = [host.communicate(timeout=150)[0] for host in hosts]
    return texts, [host.returncode for host in hosts]


def check_that_it_is_taken_up(path, places):
    (path / "test_hosts.py").write_text(TESTS)
    (path / "kill").touch()
    texts, statuses = run(path, *places())
    assert statuses[0] == -9, texts
    assert 0 not in statuses, texts
    assert not (path / "results.json").exists()
    texts, statuses = run(path, *places())
    assert set(statuses) == {1}, texts
    assert "2 processes collected 2 tests" in texts[0]
    assert "resumed: 2 of 4 tests were done" in texts[0]
    assert "failed in process 1 (" in texts[0]
    assert "1 failed, 3 passed" in texts[0]
    plain = json.loads((path / "results.json").read_text())
    assert [(test["test"].partition("::")[2], test["outcome"]) for test in plain["tests"]] == [
        ("test_passes", "passed"),
        ("test_fails_on_the_second", "failed"),
        ("test_kills_the_reporting_process", "passed"),
        ("test_last", "passed"),
    ]


def test_two_processes_of_one_machine(project):
    places = ["--pallas-processes=2"]
    check_that_it_is_taken_up(project.path, lambda: places)
    texts, statuses = run(project.path, *places)
    assert set(statuses) == {1}, texts
    assert "resumed: 4 of 4 tests were done" in texts[0]


@pytest.mark.slow
def test_two_hosts(project):
    """Where all tests are done, see tests/docs/test_multihost.py."""

    def places():
        address = f"127.0.0.1:{free_port()}"
        return [f"--pallas-distributed={number}/2@{address}" for number in (0, 1)]

    check_that_it_is_taken_up(project.path, places)
