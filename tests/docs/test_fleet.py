"""docs/fleet.md: its manifests and scripts can be read, and agree with each other."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from pytest_pallas.options import TABLE, fleet, shard

TEXT = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
FILES = dict(re.findall(r"```(?:yaml|bash)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))


def manifests(name):
    return list(yaml.safe_load_all(FILES[name]))


def container(manifest):
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def options(words):
    return dict(word.partition("=")[::2] for word in words if word.startswith("--pallas-"))


def test_its_files_are_those_that_are_read():
    scripts = {"shards.sh", "fleet.sh", "hosts.sh", "tls.sh"}
    assert set(FILES) == {"shards.yaml", "fleet.yaml", *scripts}


def test_the_variables_of_tls_are_those_of_dask():
    from dask import config
    from distributed import Security

    exports, _, _ = FILES["tls.sh"].partition("dask scheduler")
    done = subprocess.run(["bash", "-c", f"{exports} env"], capture_output=True, text=True)
    variables = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    found = config.collect_env({k: v for k, v in variables.items() if k.startswith("DASK_")})
    tls = found["distributed"]["comm"]["tls"]
    with config.set({f"distributed.comm.tls.{name}": value for name, value in tls.items()}):
        security = Security()
    assert security.tls_ca_file == "ca.pem"
    for role in ("client", "scheduler", "worker"):
        assert security.get_tls_config_for_role(role) == {
            **security.get_tls_config_for_role(role),
            "ca_file": "ca.pem", "cert": "cert.pem", "key": "key.pem",
        }  # fmt: skip


def test_its_options_exist():
    found = set(re.findall(r"--pallas-[a-z-]+[a-z]", TEXT))
    assert found <= {option.flag for option in TABLE}
    assert len(found) > 5


def test_the_pods_of_the_indexed_job_are_the_shards(monkeypatch):
    [job] = manifests("shards.yaml")
    assert job["apiVersion"] == "batch/v1"
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    words = options(shlex.split(container(job)["args"][0]))
    shards = set()
    for index in range(spec["completions"]):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
        shards.add(shard(words["--pallas-shard"]))
    assert len(shards) == spec["completions"] == spec["parallelism"]
    assert {shard.count for shard in shards} == {spec["completions"]}


def test_workers_and_controller_find_the_scheduler():
    service, scheduler, workers, job = manifests("fleet.yaml")
    assert [each["kind"] for each in (service, scheduler, workers, job)] == [
        "Service", "Deployment", "Deployment", "Job"
    ]  # fmt: skip
    port = service["spec"]["ports"][0]["port"]
    address = f"tcp://{service['metadata']['name']}:{port}"
    labels = scheduler["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == scheduler["spec"]["selector"]["matchLabels"]
    assert str(port) in container(scheduler)["args"]
    assert address in container(workers)["args"]
    given = options(container(job)["args"])["--pallas-fleet"]
    assert fleet(given).address == address
    folders = {container(each)["workingDir"] for each in (workers, job)}
    assert len(folders) == 1  # so that the project is the same


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".sh")])
def test_scripts_are_shell(name):
    done = subprocess.run(["bash", "-n"], input=FILES[name], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["scheduler", "worker"])
def test_options_of_dask_exist(command):
    from click.testing import CliRunner
    from distributed.cli import dask_scheduler, dask_worker

    commands = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
    done = CliRunner().invoke(commands[command], ["--help"])
    assert done.exit_code == 0
    lines = [line for line in TEXT.replace("\\\n", " ").splitlines() if f"dask {command}" in line]
    given = {word for line in lines for word in re.findall(r"--[a-z-]+", line)}
    given -= {"--overlap"}  # of srun
    given = {word for word in given if not word.startswith("--pallas")}
    assert given
    missing = {word for word in given if word not in done.output}
    assert not missing


def test_limits_that_the_page_names():
    from pytest_pallas.distribute.fleet import controller as runner
    from pytest_pallas.distribute.fleet import ledger

    assert f"{runner.SILENT_SECONDS:g} s (`{runner.SILENT_VARIABLE}`)" in TEXT
    assert f"{runner.WAIT_SECONDS:g} s (`{runner.WAIT_VARIABLE}`)" in TEXT
    assert ledger.TRIES == 3
    assert "loses three workers" in TEXT
