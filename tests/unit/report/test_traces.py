"""Which run ``--pallas-trace`` writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_pallas import RaceError
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import facts_of
from pytest_pallas.report.files import TraceReporter, failing_run


@pytest.fixture
def error() -> RaceError:
    arguments = Arguments((np.ones(2),), {"causal": True}, {"block": 8})
    context = CheckContext(kernel=abs, reference=None, arguments=arguments, backend=tpu_sim())
    found = RaceError("a race")
    facts_of(found).failure = Failure("races", "attention", context)
    return found


@pytest.mark.parametrize("schedule", [None, Schedule(seed=2, cores=2)])
def test_the_order_in_which_it_failed(error: Any, schedule: Any) -> None:
    facts_of(error).schedule = schedule
    ran = failing_run(error)
    assert ran is not None
    assert (ran.kernel, ran.backend.name) == ("attention", "tpu-sim")
    assert (ran.call.function, ran.call.options) == (abs, {"causal": True, "block": 8})
    assert ran.call.schedule == (schedule or Schedule())


def test_an_error_of_no_check() -> None:
    assert failing_run(ValueError("of the test")) is None


def test_only_files_beside_the_requested_one_are_moved_or_removed(tmp_path: Path) -> None:
    """What a report names may come from another machine."""
    trace = tmp_path / "trace.json"
    session: Any = SimpleNamespace(options=SimpleNamespace(trace=trace))
    reporter = TraceReporter(session)
    (tmp_path / "deep").mkdir()
    named = [tmp_path / "other.json", tmp_path / "deep" / ".trace.json.x"]
    right = tmp_path / ".trace.json.x"
    for path in (*named, right):
        path.write_text("text")
        plain = {"test": "a", "kernel": "k", "backend": "b", "failed": False, "drawn": ""}
        report: Any = SimpleNamespace(pallas_trace={**plain, "file": str(path)})
        reporter.pytest_runtest_logreport(report)
        problem = "" if path == right else "it is no file of this run"
        assert reporter.selected is not None
        assert reporter.selected.problem == problem
    ended: Any = SimpleNamespace()
    reporter.pytest_sessionfinish(ended)
    assert trace.exists()
    assert all(path.exists() for path in named)
