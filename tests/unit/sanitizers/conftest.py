"""Trials for sanitizers."""

from __future__ import annotations

import functools

import pytest

from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.trial import Trial
from pytest_pallas.sanitizers.runs import Runs
from pytest_pallas.strategies.arguments import Arguments


@pytest.fixture
def trial():
    """``trial(kernel, *args)`` on the TPU interpreter."""

    def made(kernel, *args, backend=None, devices=1, **more):
        return Trial(
            kernel=kernel,
            reference=None,
            arguments=Arguments(args),
            backend=backend or tpu_interpret(),
            devices=devices,
            runs=Runs(),
            timeout=30,
            **more,
        )

    return made


@pytest.fixture(params=[tpu_sim, tpu_interpret], ids=["tpu-sim", "tpu-interpret"])
def on_both(request, trial):
    """As ``trial``, on the simulator and on the TPU interpreter."""
    return functools.partial(trial, backend=request.param())


@pytest.fixture
def simulated(trial):
    """As ``trial``, on the simulator."""
    return functools.partial(trial, backend=tpu_sim())
