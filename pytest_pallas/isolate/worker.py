"""A pytest session in a worker process, which runs the requested tests."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from pytest_pallas.compat.testing import capture_is_closed, configured
from pytest_pallas.isolate.messages import (
    LEAST,
    Alarm,
    Opening,
    WorkerReply,
    WorkerRequest,
    encoded,
    requested,
)
from pytest_pallas.pytest_session import JOURNAL, PART, SECONDS, WORKER, current

#: The entry of the workers; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.isolate.worker:serve"


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Run a test.

    Args:
      payload: an encoded ``WorkerRequest``.
      say: sends a ``Note`` about the next step.

    Returns:
      An encoded ``WorkerReply``.
    """
    request = requested(WorkerRequest, payload)
    host = host_for(request.opening, say)
    return encoded(host.run(request))


@functools.cache
def host_for(opening: bytes, say: Callable[[bytes], None]) -> Host:
    """The session of this process, made at the first request."""
    return Host(requested(Opening, opening), say)


class Host:
    """The pytest session of this process, which collects each file once."""

    def __init__(self, opening: Opening, say: Callable[[bytes], None]) -> None:
        """Configure pytest with its command line."""
        output = os.dup(2)  # pytest's capture changes what 2 is
        self.alarm = Alarm(say, output)
        self.alarm.begin("start", LEAST)
        os.chdir(opening.folder)
        self.recorder = Recorder()
        self.config = configured(
            opening.args,
            opening.options,
            opening.attributes,
            self.recorder,
            chooses=opening.chooses,
        )
        self.session = pytest.Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=self.session)
        self.items: dict[str, pytest.Item] = {}
        self.collected: set[str | None] = set()
        current(self.config).observer = self.alarm

    def run(self, request: WorkerRequest) -> WorkerReply:
        """Run a requested test, and return its reports."""
        if request.learns is not None:
            return self._learn(request, request.learns)
        self.alarm.begin("set-up", request.timeout)
        current(self.config).given_facts = request.facts
        current(self.config).facts.update(request.facts or {})
        if request.raised is not None:
            current(self.config).raised = dict(request.raised)
        try:
            item = self._item(request)
        except pytest.exit.Exception as ended:
            return WorkerReply(exit=(str(ended.msg), ended.returncode))
        finally:
            self.alarm.stop()
        if item is None:
            return WorkerReply()
        _give(item, SECONDS, request.seconds)
        _give(item, JOURNAL, request.journal)
        _give(item, PART, request.part)
        state = current(self.config)
        state.killed = {**state.killed_earlier, **request.killed}
        reply = self.run_item(item, request.timeout)
        killed = {key: by for key, by in state.killed.items() if key not in request.killed}
        return dataclasses.replace(reply, killed=killed)

    def run_item(self, item: pytest.Item, timeout: float) -> WorkerReply:
        """Run a collected test, and return its reports.

        Args:
          item: the test.
          timeout: time limit in seconds for one step of a kernel.
        """
        self.alarm.begin("set-up", timeout, builder=getattr(item, "result", None))
        self.recorder.clear()
        try:
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except pytest.exit.Exception as ended:
            return WorkerReply(exit=(str(ended.msg), ended.returncode))
        finally:
            self.alarm.stop()
        return WorkerReply(
            reports=[
                self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
                for report in self.recorder.reports
            ],
            warnings=self.recorder.warnings,
            hazards=None if self.alarm.hazards is None else sorted(set(self.alarm.hazards)),
            stained=current(self.config).stained or capture_is_closed(self.config),
            lost_places=current(self.config).lost_places,
        )

    def _learn(self, request: WorkerRequest, spec: tuple[str, str]) -> WorkerReply:
        """Collect the file of a spec, and return what that learns of the spec."""
        state = current(self.config)
        state.given_facts, state.learns = {}, spec
        state.facts.pop(spec, None)
        self.alarm.begin("collection", request.timeout)
        try:
            self.session.perform_collect([request.path] if request.path else None)
        except pytest.exit.Exception as ended:
            return WorkerReply(exit=(str(ended.msg), ended.returncode))
        finally:
            self.alarm.stop()
            state.learns = None
        return WorkerReply(facts=state.facts.pop(spec, None))

    def _item(self, request: WorkerRequest) -> pytest.Item | None:
        """The test, from its file, or from the whole collection."""
        for path in (request.path and os.path.join(self.config.rootpath, request.path), None):
            if request.nodeid in self.items:
                break
            if path is not None and not os.path.isfile(path):
                continue
            if path not in self.collected:
                self.collected.add(path)
                for item in self.session.perform_collect(None if path is None else [path]):
                    self.items.setdefault(item.nodeid, item)
        return self.items.get(request.nodeid)


def _give(item: pytest.Item, key: pytest.StashKey[Any], value: Any) -> None:
    """Set a value on an item, or remove that of an earlier request."""
    if value is not None:
        item.stash[key] = value
    elif key in item.stash:
        del item.stash[key]


class Recorder:
    """Records the reports and warnings of a test."""

    def __init__(self) -> None:
        """Start empty."""
        self.reports: list[pytest.TestReport] = []
        self.warnings: list[dict[str, Any]] = []

    def clear(self) -> None:
        """A new test begins."""
        self.reports, self.warnings = [], []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Mark the session as that of a worker, before other plugins check it."""
        config.pluginmanager.register(object(), WORKER)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a report."""
        self.reports.append(report)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Record a warning, without its source object."""
        if when != "runtest":
            return
        plain = warnings.WarningMessage(
            warning_message.message,
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        self.warnings.append(
            {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        )
