"""``pytest -n``: each worker sees one accelerator, of a list that stands for those of a machine."""

from __future__ import annotations

import dataclasses
import json

import pytest

CONFTEST = """
    import os
    import sys

    BEFORE = os.environ.get("CUDA_VISIBLE_DEVICES"), "jax" in sys.modules
"""

TEST = """
    import json
    import os

    import pytest
    from conftest import BEFORE

    @pytest.mark.parametrize("n", range(8))
    def test_sees(n, worker_id):
        platforms = os.environ.get("JAX_PLATFORMS")
        line = json.dumps([worker_id, os.environ["CUDA_VISIBLE_DEVICES"], *BEFORE, platforms])
        with open("seen.jsonl", "a") as file:
            file.write(line + "\\n")
"""


@pytest.fixture
def gpus(project, monkeypatch):
    """A project on a machine with GPUs 3, 5 and 7."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    project.write(conftest=CONFTEST, test_sees=TEST)
    return project


def seen(project):
    lines = (project.path / "seen.jsonl").read_text().splitlines()
    return {tuple(json.loads(line)) for line in lines}


def test_each_worker_sees_one_before_a_conftest_is_read(gpus):
    result = gpus.spawn("-n2", "--dist=each", "--pallas-seed=1")
    assert seen(gpus) == {
        ("gw0", "3", "3", False, "cuda,cpu"),
        ("gw1", "5", "5", False, "cuda,cpu"),
    }
    words = "pallas: each of 2 workers has one of 3 GPUs (CUDA_VISIBLE_DEVICES)"
    assert words in result.outlines


def test_a_conftest_may_decide_itself(gpus):
    gpus.write(conftest='import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "7"\n' + "BEFORE = 7, 7")
    gpus.spawn("-n2", "--dist=each", "--pallas-seed=1")
    assert {line[1] for line in seen(gpus)} == {"7"}


def test_more_workers_run_on_the_simulators_and_the_header_says_so(gpus):
    result = gpus.spawn("-n4", "--dist=each", "--pallas-seed=1")
    assert {line[-1] for line in seen(gpus)} == {"cpu"}
    text = "pallas: 4 workers run on the simulators (JAX_PLATFORMS=cpu): they are more than 3 GPUs"
    assert text in result.stdout.str()


def test_more_workers_are_an_error_if_the_backend_is_named(gpus):
    result = gpus.spawn("-n4", "--pallas-backend=gpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: 4 workers are more than 3 GPUs, and JAX takes" in result.stderr.str()


@pytest.mark.parametrize("words", [("-n2",), ("-n2", "--pallas-backend=tpu-sim")])
def test_runs_that_do_not_ask_for_accelerators_keep_all(gpus, words):
    alone = dataclasses.replace(gpus, isolate=None)  # no option of the plugin at all
    alone.spawn(*words, "--dist=each")
    assert {line[1] for line in seen(gpus)} == {"3,5,7"}


def test_a_wrong_name_is_found_before_workers_start(gpus):
    result = gpus.spawn("-n2", "--pallas-backend=gpu,gpu-simm")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "unknown backend 'gpu-simm'. Did you mean 'gpu-sim'?" in result.stderr.str()
