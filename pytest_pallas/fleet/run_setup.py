"""What is known of a run before it begins: its groups of tests, and what workers must know."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from pytest_pallas.backends import label
from pytest_pallas.collection.selecting import scope_of
from pytest_pallas.fleet.messages import RunSetup
from pytest_pallas.fleet.project import project_of
from pytest_pallas.fleet.results import example_files
from pytest_pallas.isolation.requests import opening_of
from pytest_pallas.session import PytestSession

#: Variables that workers get, by name and by prefix: options of pytest, JAX, XLA and Hypothesis,
#: which has another profile where ``CI`` is set.
_VARIABLES = ("PYTEST_ADDOPTS", "CI")
_PREFIXES = ("JAX_", "XLA_FLAGS", "HYPOTHESIS_")

#: Limit on the failing examples that workers get, in bytes.
_MOST_EXAMPLES = 2**20


def groups_of(state: PytestSession, items: Sequence[pytest.Item]) -> Mapping[str, Sequence[str]]:
    """The tests of each kernel, in order; other tests are groups of their own."""
    found: dict[str, list[str]] = {}
    for item in items:
        found.setdefault(scope_of(item.nodeid, state.check_names), []).append(item.nodeid)
    return found


def run_setup(state: PytestSession, items: Sequence[pytest.Item], run: str) -> RunSetup:
    """What workers must know of the run."""
    config = state.config
    opening = opening_of(state)
    folder = str(config.invocation_params.dir)
    files = None
    if all(place.kind == "folder" for place in state.options.database):
        files = example_files(state.database, _MOST_EXAMPLES)
    # Each worker writes its own files, which come back with the results.
    scripts = state.options.results is not None or hasattr(config, "cache")
    options = {**opening.options, "pallas_html": "", "pallas_results": "fleet" if scripts else ""}
    options["pallas_trace"] = "" if state.options.trace is None else "fleet"
    recording = state.options.golden in ("record", "update")
    goldens = state.harness.root / state.options.golden_dir
    return RunSetup(
        run=run,
        args=[_relative(arg, folder) for arg in opening.args],
        folder=folder,
        options=options,
        gigabytes=state.options.worker_memory,
        # ``auto`` is the simulators, whatever accelerators a worker has.
        environment={**_environment(), "JAX_PLATFORMS": "cpu"},
        project=project_of(config, items),
        examples=files,
        goldens=os.path.relpath(goldens, folder) if recording else "",
    )


def _environment() -> dict[str, str]:
    """The variables that decide what a test computes."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def _relative(arg: str, folder: str) -> str:
    """An argument without the working folder, which workers may have elsewhere."""
    return arg.replace(f"{folder}{os.sep}", "") if folder != os.sep else arg


def require_no_hardware(state: PytestSession) -> None:
    """Reject hardware: workers are processes that share the devices of a machine.

    Raises:
      pytest.UsageError: a backend of the run is hardware.
    """
    found = [label(each) for each in state.selection.backends if each.kind == "hardware"]
    if found:
        raise pytest.UsageError(
            f"--pallas-fleet runs simulators, interpreters and compilers, not {', '.join(found)}: "
            "its workers share the devices of a machine. Write --pallas-backend=tpu-sim,gpu-sim, "
            "or run on machines with the devices by --pallas-shard"
        )
