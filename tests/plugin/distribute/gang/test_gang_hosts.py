"""``--pallas-distributed``: each host runs pytest, and host 0 reports."""

import os
import subprocess
import sys

import pytest

from pytest_pallas.distribute.gang.hosts import free_port

TESTS = """
import jax

def test_all_hosts_take_part():
    assert jax.process_count() == 2

def test_wrong_on_the_second():
    print("here is", jax.process_index())
    assert jax.process_index() == 0

def test_dies_on_the_second():
    import os
    if jax.process_index() == 1:
        os.abort()
"""


def start(path, *args, **environment):
    """Start pytest as another host would."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *args]
    return subprocess.Popen(
        command,
        cwd=path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(*hosts):
    """What hosts have printed, and their exit statuses."""
    texts = [host.communicate(timeout=120)[0] for host in hosts]
    return texts, [host.returncode for host in hosts]


def test_two_hosts_that_slurm_has_started(project):
    (project.path / "test_hosts.py").write_text(TESTS)
    slurm = {
        "SLURM_JOB_ID": str(free_port()),  # JAX derives the port from the number of the job
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
    }

    def host(index):
        variables = {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}
        return start(project.path, "--pallas-distributed=auto", **slurm, **variables)

    (first, second), statuses = ended(host(0), host(1))
    assert statuses == [1, 1], first + second
    assert "2 processes collected 3 tests" in first
    assert "failed in process 1 (" in first
    assert "here is 1" in first
    assert "its process died of SIGABRT" in first
    assert "2 failed, 1 passed" in first
    assert second.strip().endswith("; process 0 reports")


def test_a_host_that_never_comes_is_named(project):
    (project.path / "test_hosts.py").write_text(TESTS)
    option = f"0/2@127.0.0.1:{free_port()}"
    [text], [status] = ended(
        start(project.path, f"--pallas-distributed={option}", "--pallas-join-timeout=1")
    )
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "host 1 of 2 did not answer within 1 s. Start pytest with the same" in text


def test_a_port_that_is_taken(project):
    import socket

    (project.path / "test_hosts.py").write_text(TESTS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [text], [status] = ended(start(project.path, f"--pallas-distributed=0/2@127.0.0.1:{port}"))
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"host 0 cannot serve the other hosts at 127.0.0.1:{port}: Address already" in text
