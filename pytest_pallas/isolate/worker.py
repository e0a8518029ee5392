"""The process that runs tests for another one: a pytest session that runs the requested tests.

It serves the process of pytest that isolates tests, and the workers of a fleet. A process of a gang
has a ``WorkerSession`` of its own kind. ``WorkerSession`` collects and runs, ``Recorder`` takes the
reports, ``Alarm`` ends the process if a step does not end.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import Fact
from pytest_pallas.backends.ending import LEAST, limit_of, longest
from pytest_pallas.compat.testing import capture_is_closed, configured
from pytest_pallas.isolate.messages import (
    Change,
    Opening,
    PlainWarning,
    StepNote,
    WorkerReply,
    WorkerRequest,
    decoded,
    encoded,
    plain_reports,
    plain_warning,
)
from pytest_pallas.isolate.project import differences
from pytest_pallas.pytest_session import JOURNAL, PART, SECONDS, WORKER, PytestSession, current

if TYPE_CHECKING:
    from pytest_pallas.backends.protocol import Call
    from pytest_pallas.draw.database import Recorded

#: The profile of Hypothesis with the database apart.
_PROFILE = "pallas-fleet"


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Answer an encoded ``WorkerRequest`` by a ``WorkerReply``.

    Args:
      payload: the request.
      say: sends a ``StepNote`` about the next step.

    Returns:
      The encoded reply.
    """
    request = decoded(WorkerRequest, payload)
    return encoded(host_for(request.opening, say).run(request))


@functools.cache
def host_for(opening: bytes, say: Callable[[bytes], None]) -> WorkerSession:
    """Return the session of this process, made at the first request."""
    return WorkerSession(decoded(Opening, opening), say)


class WorkerSession:
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
        self._database_apart: Recorded | None = None
        current(self.config).observer = self.alarm

    def run(self, request: WorkerRequest) -> WorkerReply:
        """Run a requested test and return its reports, or answer what else the request asks."""
        if request.project is not None:
            self.alarm.stop()
            return WorkerReply(differences=differences(request.project, self.config.rootpath))
        if request.learns is not None:
            return self._learn(request, request.learns)
        if request.changes is not None:
            self._record_changes(request.examples, request.changes)
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
        return dataclasses.replace(
            reply,
            killed={key: by for key, by in state.killed.items() if key not in request.killed},
            changes=self._database_apart.changes if self._database_apart else (),
        )

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
            reports=plain_reports(self.config, self.recorder.reports),
            warnings=self.recorder.warnings,
            hazards=None if self.alarm.hazards is None else sorted(set(self.alarm.hazards)),
            stained=current(self.config).stained or capture_is_closed(self.config),
            lost_places=current(self.config).lost_places,
        )

    def _record_changes(
        self, examples: Mapping[str, bytes] | None, changes: Sequence[Change]
    ) -> None:
        """Let the next test change a database apart, in which these changes were made.

        Failing examples that a test saves go to the process that asked, which writes them to its
        own database once the result counts: so a test that runs twice draws the same both times.
        """
        from hypothesis import settings
        from hypothesis.database import InMemoryExampleDatabase

        from pytest_pallas.draw.database import Recorded

        if self._database_apart is None:
            state = current(self.config)
            database = state.database if examples is None else _copied(state, examples)
            apart: Any = Recorded(InMemoryExampleDatabase() if database is None else database)
            if state.database is not None:
                state.database = apart
            if settings.default is not None and settings.default.database is not None:
                settings.register_profile(_PROFILE, parent=settings.default, database=apart)
                settings.load_profile(_PROFILE)
            self._database_apart = apart
        assert self._database_apart is not None
        self._database_apart.reset(changes)

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
        """Return the test, from its file, or from the whole collection."""
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


def _copied(session: PytestSession, examples: Mapping[str, bytes]) -> Any:
    """Return a copy of the folder of another process's database, with the servers of this one."""
    from hypothesis.database import DirectoryBasedExampleDatabase, MultiplexedDatabase

    from pytest_pallas.draw.database import open_places

    folder = Path(tempfile.mkdtemp(prefix="pallas-examples-"))
    session.config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    for name, value in examples.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(value)
    copy = DirectoryBasedExampleDatabase(folder)
    servers = [
        server for server in session.options.database if server.kind not in ("folder", "none")
    ]
    root, report = session.harness.root, session.lost_places.setdefault
    opened = open_places(servers, root, report) if servers else None
    return copy if opened is None else MultiplexedDatabase(copy, opened)


class Recorder:
    """Records the reports and warnings of a test, and the failures of the collection."""

    def __init__(self) -> None:
        """Start empty."""
        self.failed_collections: list[pytest.CollectReport] = []
        self.reports: list[pytest.TestReport] = []
        self.warnings: list[PlainWarning] = []

    def clear(self) -> None:
        """Forget the reports of the last test."""
        self.reports, self.warnings = [], []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Mark the session as that of a worker, before other plugins check it."""
        config.pluginmanager.register(object(), WORKER)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a failure of the collection."""
        if report.failed:
            self.failed_collections.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a report."""
        self.reports.append(report)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Record a warning of a test."""
        if when == "runtest":
            self.warnings.append(plain_warning(warning_message, when, nodeid, location))


#: Limits on the lines of an example and their length.
_LINES, _WIDTH = 8, 300


class Alarm:
    """An ``Observer`` of calls that restarts the timer of ``faulthandler`` at each step.

    ``faulthandler`` needs neither the GIL nor the main thread, so it also ends a process whose
    kernel holds the GIL or is in XLA.
    """

    def __init__(self, say: Callable[[bytes], None], output: int) -> None:
        """Create without starting the timer.

        Args:
          say: sends a note to the parent.
          output: descriptor of the file for tracebacks, which the parent reads.
        """
        self._say, self._output = say, output
        self._timeout = LEAST
        self._note = StepNote(step="start", limit=LEAST)
        self.hazards: list[str] | None = None

    def begin(self, step: str, timeout: float, *, limit: float = 0.0, builder: Any = None) -> None:
        """Start a test with a time limit of ``timeout`` seconds for its kernels.

        Args:
          step: the first step.
          timeout: the limit of kernels.
          limit: that of the step, in seconds; by default that of any step.
          builder: the ``Result`` of the test, if it is that of a spec.
        """
        self._timeout = timeout
        self.hazards = None
        note = StepNote(step=step, limit=limit or longest(timeout))
        self._step(note if builder is None else dataclasses.replace(note, **_subject(builder)))

    def stop(self) -> None:
        """Stop the timer."""
        faulthandler.cancel_dump_traceback_later()

    def example(self, builder: Any, facts: Sequence[Fact]) -> None:
        """Begin the step of an example."""
        note = StepNote(
            step="an example",
            limit=longest(self._timeout),
            **_subject(builder),
            examples=builder.earlier + builder.examples,
            drawn=[(fact.name, fact.text[:_WIDTH]) for fact in facts[:_LINES]],
        )
        self._step(note)

    def traced(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """Begin the step of a call that is compiled and executed."""
        self._begin_call(call, jaxpr, kernels, simulated=False)

    def simulated(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """Begin the step of a call that is simulated."""
        self._begin_call(call, jaxpr, kernels, simulated=True)

    def _begin_call(
        self, call: Call, jaxpr: Any, kernels: Sequence[Any], *, simulated: bool
    ) -> None:
        from pytest_pallas.grid.kernel_calls import hazards

        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr, simulated=simulated)
        running = [f"{kernel.name} at {kernel.source}" for kernel in kernels]
        limit = limit_of(call.settings.timeout)
        self._step(dataclasses.replace(self._note, step="a kernel", limit=limit, running=running))

    def ended(self, call: Call) -> None:
        """Begin the step after a call."""
        del call
        limit = longest(self._timeout)
        self._step(dataclasses.replace(self._note, step="the rest", limit=limit, running=()))

    def _step(self, note: StepNote) -> None:
        self._note = note
        self._say(note.encode())
        faulthandler.dump_traceback_later(note.limit, exit=True, file=self._output)


def _subject(builder: Any) -> dict[str, Any]:
    """Return the fields of a note that say what a builder is of."""
    names = ("kernel", "check", "backend", "family")
    return {**{name: getattr(builder, name) for name in names}, "mesh": dict(builder.mesh)}
