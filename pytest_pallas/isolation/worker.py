"""In a worker process: a pytest session that runs the tests that it is told to."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from pytest_pallas.compat.testing import configured
from pytest_pallas.isolation.crash_reports import LEAST, Alarm
from pytest_pallas.isolation.messages import Opening, Reply, Request, decoded, encoded
from pytest_pallas.mutation_runner.journal import JOURNAL
from pytest_pallas.session import WORKER, current

#: What workers are started with; see ``workers.Setup``.
ENTRY = "pytest_pallas.isolation.worker:serve"

#: How long an item may fuzz, which the parent decides.
SECONDS = pytest.StashKey[float]()


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Run a test.

    Args:
      payload: an encoded ``Request``.
      say: takes a ``Note`` of what is about to be done.

    Returns:
      An encoded ``Reply``.
    """
    request: Request = decoded(payload)
    host = _host(request.opening, say)
    return encoded(host.run(request))


@functools.cache
def _host(opening: bytes, say: Callable[[bytes], None]) -> Host:
    return Host(decoded(opening), say)


class Host:
    """The session of this process, which collects each file once."""

    def __init__(self, opening: Opening, say: Callable[[bytes], None]) -> None:
        """Configure pytest, as its command line says."""
        output = os.dup(2)  # pytest's capture changes what 2 is
        self.alarm = Alarm(say, output)
        self.alarm.begin("start", LEAST)
        os.chdir(opening.folder)
        self.recorder = Recorder()
        self.config = configured(opening.args, opening.options, opening.attributes, self.recorder)
        self.session = pytest.Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=self.session)
        self.items: dict[str, pytest.Item] = {}
        self.collected: set[str | None] = set()
        current(self.config).observer = self.alarm

    def run(self, request: Request) -> Reply:
        """Run a test, and say what became of it."""
        self.alarm.begin("set-up", request.timeout)
        self.recorder.clear()
        try:
            item = self._item(request)
            if item is None:
                return Reply()
            if request.seconds is not None:
                item.stash[SECONDS] = request.seconds
            if request.journal is not None:
                item.stash[JOURNAL] = request.journal
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except pytest.exit.Exception as ended:
            return Reply(exit=(str(ended.msg), ended.returncode))
        finally:
            self.alarm.stop()
        return Reply(
            reports=[
                self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
                for report in self.recorder.reports
            ],
            warnings=self.recorder.warnings,
            hazards=None if self.alarm.hazards is None else sorted(set(self.alarm.hazards)),
            stained=current(self.config).stained,
            lost_places=current(self.config).lost_places,
        )

    def _item(self, request: Request) -> pytest.Item | None:
        """The test, from its file, or else from everything."""
        for path in (request.path, None):
            if request.nodeid in self.items:
                break
            if path is not None and not os.path.isfile(path):
                continue
            if path not in self.collected:
                self.collected.add(path)
                for item in self.session.perform_collect(None if path is None else [path]):
                    self.items.setdefault(item.nodeid, item)
        return self.items.get(request.nodeid)


class Recorder:
    """Keeps the reports and warnings of a test, as the terminal would show them."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.reports: list[pytest.TestReport] = []
        self.warnings: list[dict[str, Any]] = []

    def clear(self) -> None:
        """A new test begins."""
        self.reports, self.warnings = [], []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Make the session one of a worker, before other plugins look."""
        config.pluginmanager.register(object(), WORKER)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report."""
        self.reports.append(report)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Keep a warning, without the object that it is about."""
        if when != "runtest":
            return
        told = warnings.WarningMessage(
            warning_message.message,
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        self.warnings.append(
            {"warning_message": told, "when": when, "nodeid": nodeid, "location": location}
        )
