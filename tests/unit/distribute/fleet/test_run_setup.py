"""What a run tells its workers, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_pallas.distribute.fleet import controller as run_setup
from pytest_pallas.distribute.fleet.controller import time_shares
from pytest_pallas.pytest_session import SESSION


def test_hardware_is_refused():
    backends = [SimpleNamespace(kind="hardware", name="tpu", target=None)]
    state = SimpleNamespace(selection=SimpleNamespace(backends=backends))
    with pytest.raises(pytest.UsageError, match="not tpu: its workers share the devices"):
        run_setup.require_no_hardware(state)


def test_variables_that_decide_what_a_test_computes(monkeypatch):
    for name in ("JAX_ENABLE_X64", "PYTEST_ADDOPTS", "HYPOTHESIS_STORAGE_DIRECTORY", "OWN_TOKEN"):
        monkeypatch.setenv(name, "1")
    assert {"JAX_ENABLE_X64", "PYTEST_ADDOPTS", "HYPOTHESIS_STORAGE_DIRECTORY"} <= {
        *run_setup._environment()
    }
    assert "OWN_TOKEN" not in run_setup._environment()


@pytest.mark.parametrize(
    ("arg", "relative"),
    [("/work/p/tests", "tests"), ("--pallas-dump=/work/p/d", "--pallas-dump=d"), ("-x", "-x")],
)
def test_paths_in_the_working_folder_are_relative(arg, relative):
    assert run_setup._relative(arg, "/work/p") == relative


def test_tests_without_a_time_limit_have_no_share():
    options = SimpleNamespace(fuzz_time=0.0, mutate_time=0.0, mutate=None)
    config = SimpleNamespace(stash={SESSION: SimpleNamespace(options=options, done_items=[])})
    assert time_shares(config, [], 4) == {}
