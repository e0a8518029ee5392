"""docs/multihost.md: its example runs in two processes, and its files and commands are valid."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_pallas.distribute.gang.hosts import free_port
from pytest_pallas.options import Distributed, read_options

TEXT = (Path(__file__).parents[2] / "docs/multihost.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


BEGIN, GCLOUD, SBATCH = blocks("bash")
[PYTHON] = blocks("python")
SERVICE, JOB = yaml.safe_load_all(blocks("yaml")[0])


def commands(text):
    """The commands of a script, as words."""
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def pytest_words(words):
    """The arguments of pytest in a command, or in a shell's text that is one of its words."""
    found = []
    for word in words:
        inner = shlex.split(word.removeprefix("--command=")) if " " in word else []
        found += pytest_words(inner)
    starts = [n for n, word in enumerate(words) if word.rpartition("/")[2] == "pytest"]
    return found + [words[start + 1 :] for start in starts]


@pytest.fixture
def parsed(pytester):
    """Parses arguments of pytest, of which none may be unknown."""
    (pytester.path / "tests/multihost").mkdir(parents=True)
    (pytester.path / "mykernels").mkdir()

    def parse(words):
        config = pytester.parseconfig(*words)
        return read_options(config)

    return parse


@pytest.fixture
def example(pytester):
    """The folder with the example of the page."""
    name, _, source = PYTHON.partition("\n")
    path = pytester.path / name.removeprefix("# ")
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return pytester.path


def test_the_example_runs_in_two_processes(example):
    [begin] = commands(BEGIN)
    command = [sys.executable, "-m", *begin, "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(command, cwd=example, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 processes with 4 simulated devices each" in done.stdout
    assert "1 passed" in done.stdout


def test_commands_on_a_tpu_pod(parsed):
    every = commands(GCLOUD)
    assert {tuple(words[:4]) for words in every} == {("gcloud", "compute", "tpus", "tpu-vm")}
    assert [words[4] for words in every] == ["create", "scp", "ssh", "ssh", "scp", "delete"]
    zones = {word for words in every for word in words if word.startswith("--zone=")}
    assert len(zones) == 1
    assert all("pallas" in words or any("pallas:" in word for word in words) for words in every)
    for words in every[1:4]:
        assert "--worker=all" in words
    [[run]] = [found for words in every if (found := pytest_words(words))]
    options = parsed(run)
    assert options.distributed == Distributed()
    assert options.backend == ("tpu",)
    copied = [word.rpartition("/")[2] for word in every[4] if word.startswith("pallas:")]
    assert copied == [str(options.results), str(options.html)]


def test_the_script_for_slurm(parsed):
    assert SBATCH.startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n"], input=SBATCH, text=True, check=True)
    given = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SBATCH, re.MULTILINE))
    assert len(given) == SBATCH.count("#SBATCH")
    assert given["ntasks-per-node"] == given["gpus-per-node"]  # a GPU for each process
    assert "gpus-per-task" not in given
    [run] = [words for words in commands(SBATCH) if words[0] == "srun"]
    [words] = pytest_words(run)
    options = parsed(words)
    assert options.distributed == Distributed()
    assert options.results == options.resume


#: Starts two tasks of a step, as srun does.
SRUN = """#!{python}
import os, subprocess, sys

step = dict(SLURM_JOB_ID="{job}", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2")
tasks = [
    subprocess.Popen(
        sys.argv[1:],
        env=os.environ | step | dict(SLURM_PROCID=str(number), SLURM_LOCALID=str(number)),
    )
    for number in range(2)
]
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.mark.slow
def test_the_script_for_slurm_runs(example):
    """On simulated devices, with the variables of two tasks."""
    folder = example / "bin"
    folder.mkdir()
    (folder / "srun").write_text(SRUN.format(python=sys.executable, job=free_port()))
    (folder / "srun").chmod(0o755)
    script = SBATCH.replace("venv/bin/pytest", f"{sys.executable} -m pytest")
    script = script.replace("--pallas-backend=gpu", "--pallas-backend=interpret")
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    for text in ("2 processes collected 1 test", "resumed: 1 of 1 tests were done"):
        done = subprocess.run(
            ["bash"], input=script, cwd=example, capture_output=True, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert text in done.stdout
        assert "process 1 of 2, coordinated at localhost:" in done.stdout


def test_the_command_for_kubernetes_runs(example):
    """On simulated devices, in two processes in place of two pods."""
    [container] = JOB["spec"]["template"]["spec"]["containers"]
    *shell, text = container["command"]
    for before, after in (
        ("pytest tests", f"{sys.executable} -m pytest tests"),
        ("pallas-0.pallas:8476", f"127.0.0.1:{free_port()}"),
        ("/results/", ""),
        ("--pallas-backend=gpu", "--pallas-backend=interpret"),
    ):
        assert before in text
        text = text.replace(before, after)
    pods = [
        subprocess.Popen(
            [*shell, text], cwd=example, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(JOB["spec"]["completions"])
    ]  # fmt: skip
    first, second = (pod.communicate(timeout=120)[0] for pod in pods)
    assert [pod.returncode for pod in pods] == [0, 0], first + second
    assert "2 processes collected 1 test" in first
    assert "1 passed" in first
    assert (example / "results.json").exists()


def test_the_manifest_for_kubernetes(parsed):
    assert (SERVICE["kind"], JOB["kind"]) == ("Service", "Job")
    name, spec = JOB["metadata"]["name"], JOB["spec"]
    pod = spec["template"]["spec"]
    assert SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["publishNotReadyAddresses"] is True
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == SERVICE["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    [container] = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        v["name"] for v in pod["volumes"]
    }
    shell, flag, text = container["command"]
    assert (shell, flag) == ("sh", "-c")
    for index in range(spec["completions"]):
        words = shlex.split(text.replace("$JOB_COMPLETION_INDEX", str(index)))
        options = parsed(words[1:])
        address = f"{name}-0.{SERVICE['metadata']['name']}:8476"
        assert options.distributed == Distributed(address, index, spec["completions"])
        assert str(options.results).startswith(container["volumeMounts"][0]["mountPath"])


#: The rows of the table of clusters, in the order in which JAX asks, and the modules.
CLUSTERS = {
    "Open MPI before 5": ("ompi_cluster", "OmpiCluster"),
    "Slurm": ("slurm_cluster", "SlurmCluster"),
    "TPU VMs": ("cloud_tpu_cluster", "GceTpuCluster"),
    "TPUs in GKE": ("cloud_tpu_cluster", "GkeTpuCluster"),
    "Kubernetes Jobs": ("k8s_cluster", "K8sCluster"),
}


def row(name):
    return next(line for line in TEXT.splitlines() if line.startswith(f"| {name} |"))


def module(name):
    return importlib.import_module(f"jax._src.clusters.{CLUSTERS[name][0]}")


def test_jax_asks_in_this_order():
    from jax._src.clusters import ClusterEnv

    types = [each for each in ClusterEnv._cluster_types if not each.opt_in_only_method]
    known = [each.__name__ for each in types if not each.__name__.startswith("Base")]
    assert known == [name for _, name in CLUSTERS.values()]
    places = [TEXT.index(row(name)) for name in CLUSTERS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", CLUSTERS)
def test_jax_reads_these_variables(name):
    source = inspect.getsource(module(name))
    variables = re.findall(r"`([A-Z][A-Z_a-z]+|[\w]+-[\w-]+)`", row(name))
    assert variables
    for variable in variables:
        assert variable in source, variable


def test_jax_reads_this_port():
    source = inspect.getsource(importlib.import_module("jax._src.clusters.cluster"))
    assert "JAX_COORDINATOR_PORT" in source
    assert "`JAX_COORDINATOR_PORT`" in TEXT


def test_jax_takes_these_ports(monkeypatch):
    assert f"; {module('TPU VMs').coordinator_port} |" in row("TPU VMs")
    assert f"; {module('TPU VMs').coordinator_port} |" in row("TPUs in GKE")
    assert f"; {module('Kubernetes Jobs').K8sCluster._coordinator_port} |" in row("Kubernetes Jobs")
    monkeypatch.setenv("SLURM_JOB_ID", "987654")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[001-004,007]")
    address = module("Slurm").SlurmCluster.get_coordinator_address(1, None)
    assert address == f"node001:{61440 + 987654 % 4096}"
    assert "61440 + `SLURM_JOB_ID` modulo 4096" in row("Slurm")


def test_options_that_the_page_names_exist():
    from pytest_pallas.options import TABLE

    known = {option.flag for option in TABLE}
    assert set(re.findall(r"--pallas-[\w-]+", TEXT)) <= known
