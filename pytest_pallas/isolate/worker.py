"""The process that runs tests for another one, in a pytest session of its own.

The other process is the pytest that isolates tests, or a worker of a fleet. (A process of a gang
uses ``WorkerSession`` in its own way.) ``WorkerSession`` collects and runs tests, ``Recorder``
keeps the reports, and ``Alarm`` ends the process if a step exceeds its time limit.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import Fact
from pytest_pallas.backends.ending import LEAST, limit_of, longest
from pytest_pallas.backends.protocol import Observer
from pytest_pallas.backends.registry import devices_of, parse
from pytest_pallas.backends.statuses import lost
from pytest_pallas.compat.testing import capture_is_closed, configured, take_benchmarks, tear_down
from pytest_pallas.isolate.messages import (
    KERNEL,
    PROGRAMS,
    Change,
    Opening,
    PlainWarning,
    StepNote,
    WorkerReply,
    WorkerRequest,
    decoded,
    differences,
    encoded,
    plain_reports,
    plain_warning,
)
from pytest_pallas.options import Replay
from pytest_pallas.pytest_session import JOURNAL, PART, SECONDS, WORKER, PytestSession, current

if TYPE_CHECKING:
    from pytest_pallas.backends.protocol import Call
    from pytest_pallas.draw.covering import Goal
    from pytest_pallas.draw.database import Recorded

#: The name of the profile of Hypothesis whose database records changes and writes no files.
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
    try:
        host = host_for(request.opening, say)
    except pytest.UsageError as error:
        if request.nodeid or request.devices is None:
            raise
        return encoded(WorkerReply(refused=str(error)))  # the process that asks says so
    return encoded(host.run(request))


@functools.cache
def host_for(opening: bytes, say: Callable[[bytes], None]) -> WorkerSession:
    """Return the session of this process; the first request starts it."""
    return WorkerSession(decoded(Opening, opening), say)


class WorkerSession:
    """The pytest session of this process, which collects each file once."""

    def __init__(self, opening: Opening, say: Callable[[bytes], None]) -> None:
        """Configure pytest with its command line."""
        output = os.dup(2)  # pytest's capture replaces descriptor 2
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
        #: That of the plugin, and Hypothesis' default one; empty before another one is used.
        self._own_databases: Sequence[Any] = ()
        current(self.config).observer = self.alarm

    def run(self, request: WorkerRequest) -> WorkerReply:
        """Run the requested test and return its reports.

        A request may ask instead how this project differs (``project``), for the facts of a spec
        (``learns``), or for devices. A reply without reports means that the test was not found.
        """
        if request.devices is not None:
            self.alarm.begin("opening the devices", request.timeout)
            try:
                reply = self._devices(request.devices)
            finally:
                self.alarm.stop()
            if reply.refused or not request.nodeid:
                return reply
        elif not request.nodeid and request.learns is None and request.project is None:
            tear_down(self.session)  # the test that was to come does not
            return WorkerReply()
        if request.project is not None:
            self.alarm.stop()
            return WorkerReply(differences=differences(request.project, self.config.rootpath))
        if request.learns is not None:
            return self._learn(request, request.learns)
        if request.changes is not None:
            apart = self._record_changes(request.examples, request.changes)
        else:
            apart = None
            self._use_databases(*self._own_databases)
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
        _stash(item, SECONDS, request.seconds)
        _stash(item, JOURNAL, request.journal)
        _stash(item, PART, request.part)
        state = current(self.config)
        state.killed = {**state.killed_earlier, **request.killed}
        options = state.options
        if request.blob:
            state.options = dataclasses.replace(options, replay=Replay(blob=request.blob))
        try:
            reply = self.run_item(item, request.timeout, self._following(item, request))
        finally:
            state.options = options
        return dataclasses.replace(
            reply,
            killed={key: by for key, by in state.killed.items() if key not in request.killed},
            changes=apart.changes if apart else (),
        )

    def _devices(self, labels: Sequence[str]) -> WorkerReply:
        """Return the devices, or which of these backends has none."""
        keep_programs(os.environ.get(PROGRAMS, ""))
        state = current(self.config)
        if not labels:
            return WorkerReply(devices=devices_of(state.families.values()))
        gone = {
            label: problem
            for label in labels
            for backend in parse(label, state.families)
            if (problem := backend.available()) is not None
        }
        lines = "; ".join(f"{label}: {problem}" for label, problem in gone.items())
        return WorkerReply(refused=lines)

    def _following(self, item: pytest.Item, request: WorkerRequest) -> Any:
        """Return what stands for the next test, so that fixtures that it shares are kept."""
        if request.following is None:
            return None
        nodeid, shared = request.following
        known = self.items.get(nodeid)
        return _TestToCome(nodeid, item.listchain()[:shared]) if known is None else known

    def run_item(self, item: pytest.Item, timeout: float, following: Any = None) -> WorkerReply:
        """Run a collected test, and return its reports.

        Args:
          item: the test.
          timeout: time limit in seconds for one step of a kernel.
          following: the next test; None to end all fixtures.
        """
        self.alarm.begin("set-up", timeout, builder=getattr(item, "result", None))
        self.recorder.clear()
        try:
            tear_down(self.session, item)  # another one was to come
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except pytest.exit.Exception as ended:
            return WorkerReply(exit=(str(ended.msg), ended.returncode))
        finally:
            self.alarm.stop()
        return WorkerReply(
            reports=plain_reports(self.config, self.recorder.reports),
            warnings=self.recorder.warnings,
            hazards=None if self.alarm.hazards is None else sorted(set(self.alarm.hazards)),
            stained=current(self.config).stained or lost() or capture_is_closed(self.config),
            lost=lost(),
            benchmarks=take_benchmarks(self.config),
            lost_places=current(self.config).lost_places,
        )

    def _record_changes(
        self, examples: Mapping[str, bytes] | None, changes: Sequence[Change]
    ) -> Recorded:
        """Give the next test a separate database, after these changes to it, and return it.

        The separate database records what the test saves, and writes nothing. The reply sends these
        changes to the process that asked, and that process writes them to its own database once the
        result counts. So a test that runs twice draws the same examples both times.

        Args:
          examples: the files of the other process's database, by path; None if this session can
            open that database itself.
          changes: what earlier tests of the kernel changed.
        """
        from hypothesis import settings
        from hypothesis.database import InMemoryExampleDatabase

        from pytest_pallas.draw.database import Recorded

        apart: Any = self._database_apart
        if apart is None:
            state = current(self.config)
            default = None if settings.default is None else settings.default.database
            self._own_databases = state.database, default
            database = state.database if examples is None else _copied(state, examples)
            apart = Recorded(InMemoryExampleDatabase() if database is None else database)
            self._database_apart = apart
        apart.reset(changes)
        self._use_databases(*(own if own is None else apart for own in self._own_databases))
        return apart

    def _use_databases(self, database: Any = None, default: Any = None) -> None:
        """Let the plugin use a database, and Hypothesis another one."""
        from hypothesis import settings

        if not self._own_databases:
            return
        current(self.config).database = database
        if settings.default is not None and settings.default.database is not default:
            settings.register_profile(_PROFILE, parent=settings.default, database=default)
            settings.load_profile(_PROFILE)

    def _learn(self, request: WorkerRequest, spec: tuple[str, str]) -> WorkerReply:
        """Collect the file of a spec; return the facts of the spec that collection finds out."""
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
        """Collect and return the requested test; None if there is no such test.

        This collects the file of the test first. If the test is not in it, a hook may make the
        test, so this collects all that the command line names.
        """
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


@dataclass
class _TestToCome:
    """A test of a file that is not collected yet, as far as pytest asks: for its nodes.

    Attributes:
      nodeid: its node id.
      nodes: those that it shares with the test before it.
    """

    nodeid: str
    nodes: list[Any]

    def listchain(self) -> list[Any]:
        """Return the nodes."""
        return self.nodes


#: JAX keeps in a folder what takes longer to compile, in seconds.
_KEPT_FROM = 0.2


def keep_programs(folder: str) -> None:
    """Let JAX keep in a folder what it compiles for long, unless the user has named another one."""
    import jax

    if folder and not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _KEPT_FROM)


def _stash(item: pytest.Item, key: pytest.StashKey[Any], value: Any) -> None:
    """Stash a value on an item; None removes the value of an earlier request."""
    if value is not None:
        item.stash[key] = value
    elif key in item.stash:
        del item.stash[key]


def _copied(session: PytestSession, examples: Mapping[str, bytes]) -> Any:
    """Return a database of these examples, and of the servers that the command line names.

    The examples are files of another process's database. They are written to a temporary folder,
    because this process may run on a machine without that folder. Servers can be reached from here.
    """
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
        """Mark the session as a worker's, before the plugins that check this are configured."""
        config.pluginmanager.register(object(), WORKER)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a report if collection failed."""
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


#: Limits on the number of drawn values in a note, and on the characters of each.
_LINES, _WIDTH = 8, 300


class Alarm(Observer):
    """An ``Observer`` of calls that starts a timer of ``faulthandler`` for each step.

    If the step exceeds its limit, ``faulthandler`` writes a traceback and ends the process. It
    needs neither the GIL nor the main thread, so it also ends a kernel that holds the GIL or runs
    in XLA.
    """

    def __init__(self, say: Callable[[bytes], None], output: int) -> None:
        """Create without starting the timer.

        Args:
          say: sends an encoded ``StepNote`` to the parent.
          output: descriptor of the file for tracebacks, which the parent reads.
        """
        self._say, self._output = say, output
        self._timeout = LEAST
        self._note = StepNote(step="start", limit=LEAST)
        self.hazards: list[str] | None = None

    def begin(self, step: str, timeout: float, *, limit: float = 0.0, builder: Any = None) -> None:
        """Begin the first step of a test or a collection, and forget the hazards of the last one.

        Args:
          step: the name of the step.
          timeout: time limit in seconds for one step of a kernel.
          limit: time limit in seconds for this step; 0 for that of any step (``ending.longest``).
          builder: the ``Result`` of the test, if the test is a spec's.
        """
        self._timeout = timeout
        self.hazards = None
        note = StepNote(step=step, limit=limit or longest(timeout))
        self._step(note if builder is None else dataclasses.replace(note, **_subject(builder)))

    def stop(self) -> None:
        """Stop the timer."""
        faulthandler.cancel_dump_traceback_later()

    def example(
        self, builder: Any, facts: Sequence[Fact], call: str = "", goal: Goal | None = None
    ) -> None:
        """Begin the step of an example, which a spec's check draws under the name ``call``.

        With the same goal, it draws others of the same sizes and choices.
        """
        note = StepNote(
            step="an example",
            limit=longest(self._timeout),
            **_subject(builder),
            examples=builder.earlier + builder.examples,
            call=call,
            sizes={} if goal is None else goal.sizes,
            choices=[
                (aspect.role, aspect.name, word)
                for aspect, word in ({} if goal is None else goal.choices).items()
            ],
            drawn=[(fact.name, fact.text[:_WIDTH]) for fact in facts[:_LINES]],
        )
        self._step(note)

    def traced(
        self, call: Call, jaxpr: Any, kernels: Sequence[Any], *, simulated: bool = False
    ) -> None:
        """Begin the step of a call."""
        from pytest_pallas.grid.kernel_calls import hazards

        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr, simulated=simulated)
        running = [kernel.located_name for kernel in kernels]
        limit = limit_of(call.settings.timeout)
        self._step(dataclasses.replace(self._note, step=KERNEL, limit=limit, running=running))

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
    """Return the fields of a note that a result has, too, such as kernel, check and mesh."""
    names = ("kernel", "check", "backend", "family", "source")
    return {**{name: getattr(builder, name) for name in names}, "mesh": dict(builder.mesh)}
