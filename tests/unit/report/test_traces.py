"""Which run ``--pallas-trace`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.backends.variations import Schedule
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.errors import RaceError
from pytest_pallas.report.traces import failing_run
from pytest_pallas.strategies.arguments import Arguments


@pytest.fixture
def error() -> RaceError:
    arguments = Arguments((np.ones(2),), {"causal": True}, {"block": 8})
    context = CheckContext(kernel=abs, reference=None, arguments=arguments, backend=tpu_sim())
    found = RaceError("a race")
    found.failure = Failure("races", "attention", context)
    return found


@pytest.mark.parametrize("schedule", [None, Schedule(seed=2, cores=2)])
def test_the_order_in_which_it_failed(error: Any, schedule: Any) -> None:
    error.schedule = schedule
    ran = failing_run(error)
    assert ran is not None
    assert (ran.kernel, ran.backend.name) == ("attention", "tpu-sim")
    assert (ran.call.function, ran.call.options) == (abs, {"causal": True, "block": 8})
    assert ran.call.schedule == (schedule or Schedule())


def test_an_error_of_no_check() -> None:
    assert failing_run(ValueError("of the test")) is None
