"""What ``pytest --pallas-doctor`` does in place of a test run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from pytest_pallas.devices.simulate import DEFAULT_COUNT, settle_platforms, simulate


def run(config: pytest.Config) -> int:
    """Print the report. Returns pytest's exit status, 0 whatever is found."""
    environ = dict(os.environ)  # as it was set, without what follows
    settle_platforms(os.environ)
    simulate(DEFAULT_COUNT, os.environ, explicit=False)
    for line in _lines(config, environ):
        print(line, flush=True)  # noqa: T201
    return pytest.ExitCode.OK


def _lines(config: pytest.Config, environ: dict[str, str]) -> Iterator[str]:
    """The report."""
    from pytest_pallas.doctor.facts import machine
    from pytest_pallas.doctor.report import lines
    from pytest_pallas.doctor.trials import devices, trials
    from pytest_pallas.options.values import Options
    from pytest_pallas.session import Session
    from pytest_pallas.session.pytest_session import harness_of

    session = Session(options=Options(), harness=harness_of(config))
    plugins = [
        (each.project_name, each.version) for _, each in config.pluginmanager.list_plugin_distinfo()
    ]
    found = machine(plugins, environ)
    try:
        yield from lines(found, devices(), trials(session.families.values()))
    finally:
        sys.stdout.flush()
