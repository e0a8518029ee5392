"""Contexts for sanitizers."""

from __future__ import annotations

import pytest

from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.draw.arguments import Arguments


@pytest.fixture
def context():
    """``context(kernel, *args)`` on the simulator, if no other backend is named."""

    def made(kernel, *args, backend=None, devices=1, **more):
        return CheckContext(
            kernel=kernel,
            reference=None,
            arguments=Arguments(args),
            backend=backend or tpu_sim(),
            runs=Runs(),
            settings=RunSettings(devices=devices, timeout=30),
            **more,
        )

    return made
