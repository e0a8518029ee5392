"""A process of a gang: a session of pytest that runs each test together with the others."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any

import pytest

from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends import label
from pytest_pallas.compat.distributed import join
from pytest_pallas.devices.processes import agree, begin_scope, end_scope
from pytest_pallas.errors import GangError, PeerError
from pytest_pallas.gang.given import FailedExampleError, OutOfStepError, settle_given
from pytest_pallas.gang.messages import (
    BECAUSE,
    Collected,
    RunTest,
    Start,
    packed,
    request_from_json,
)
from pytest_pallas.isolation.crash_reports import longest
from pytest_pallas.isolation.messages import StepNote, WorkerReply, decoded, encoded
from pytest_pallas.isolation.worker import Host
from pytest_pallas.options.values import Options
from pytest_pallas.session import current

#: Seconds after which JAX counts a silent process as dead.
HEARTBEAT = 20.0

#: Of the time limit of a step, the part that a process waits for another one.
PART = 0.9

#: Number of tests that a difference between two collections lists.
_LISTED = 6

#: The host of this process, once it has started.
_hosts: list[GangHost] = []


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Answer one message: ``Start`` with ``Collected``, ``RunTest`` with ``absent`` and a reply."""
    message = request_from_json(payload)
    if isinstance(message, Start):
        return packed(_started(message, say))
    return packed(_hosts[0].run_together(message))


def _started(start: Start, say: Callable[[bytes], None]) -> Collected:
    """Join the program, configure pytest, collect, and compare with the other processes."""
    os.chdir(start.opening.folder)
    say(StepNote(step="joining", limit=start.seconds).encode())
    join(start.place, start.seconds, HEARTBEAT)
    try:
        host = GangHost(start, say)
    except pytest.UsageError as error:
        return Collected(problem=str(error))
    _hosts.append(host)
    return host.collect(start.seconds)


class GangHost(Host):
    """The session of pytest of this process."""

    def __init__(self, start: Start, say: Callable[[bytes], None]) -> None:
        """Configure pytest."""
        self._process = start.place.index
        self._collector = _CollectReports()
        super().__init__(start.opening, say)
        self.config.pluginmanager.register(self._collector)
        self.config.pluginmanager.register(_Together())

    def collect(self, seconds: float) -> Collected:
        """Collect everything; ``problem`` if another process has other tests."""
        self.alarm.begin("collection", seconds)
        try:
            self.session.perform_collect()
        except (pytest.UsageError, PallasError) as error:
            return Collected(problem=str(error))
        except pytest.exit.Exception as ended:
            return Collected(problem=str(ended.msg))
        finally:
            self.alarm.stop()
        items = self.session.items
        self.items = {item.nodeid: item for item in items}
        state = current(self.config)
        try:
            problem = self._difference(list(self.items), seconds)
        except GangError as error:
            problem = str(error)
        return Collected(
            tests=[(item.nodeid, item.location) for item in items],
            problem=problem,
            reports=[
                self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
                for report in self._collector.reports
            ],
            backends=[label(backend) for backend in state.selection.backends],
            not_applicable=list(state.not_applicable.values()),
            shard=(state.shard_line, state.empty_shard),
            timeout=max((_options_of(item).timeout for item in items), default=0.0),
        )

    def _difference(self, names: Sequence[str], seconds: float) -> str:
        """The difference of this collection from that of process 0; "" if there is none."""
        digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()
        digests = [each.value for each in agree("collected", value=digest, timeout=seconds)]
        if len(set(digests)) == 1:
            return ""
        first, *_ = agree("tests", value=names, timeout=seconds)
        if digests[self._process] == digests[0]:
            return ""
        return (
            f"it collected other tests than process 0 ({first.host}), so they cannot run "
            f"together:\n{_listed(first.value, names, self._process)}"
        )

    def run_together(self, request: RunTest) -> tuple[str, WorkerReply | None]:
        """Run a test with all other processes.

        Returns:
          The message if others did not come, or "", and the reply.
        """
        item = self.items[request.nodeid]
        timeout = _options_of(item).timeout
        self.alarm.begin("the start of the test", timeout)
        limit = PART * longest(timeout)
        begin_scope(request.key)
        try:
            agree("begin", subject=request.nodeid, timeout=limit)
        except GangError as error:
            self.alarm.stop()
            return str(error), None
        current(self.config).raised = dict(request.raised)
        reply = self.run_item(item, timeout)
        begin_scope(f"{request.key} end")
        outcome = _outcome(self.recorder.reports)
        if outcome == "passed":
            # The next test must not begin while another process still runs this one.
            with contextlib.suppress(PeerError, GangError):
                agree("end", timeout=limit)
        else:
            end_scope(outcome)
        # What cannot be pickled becomes text here, and not in the message around it.
        return "", decoded(encoded(reply))


def _options_of(item: pytest.Item) -> Options:
    """The options of a test, without those of a wrong mark, which the test's set-up reports."""
    state = current(item.config)
    try:
        return state.options_for(item)
    except OptionError:
        return state.options


def _outcome(reports: Sequence[pytest.TestReport]) -> str:
    """The outcome of a test in this process."""
    worst = [report.outcome for report in reports if report.outcome != "passed"]
    return worst[0] if worst else "passed"


def _listed(theirs: Sequence[str], ours: Sequence[str], process: int) -> str:
    """The first tests that only one of two processes has, or another order."""
    if sorted(theirs) == sorted(ours):
        return f"  the same {len(ours)} tests, in another order"
    lines = [
        f"  only in process {process if line.startswith('+') else 0}: {line[2:]}"
        for line in difflib.ndiff(sorted(theirs), sorted(ours))
        if line[:2] in ("- ", "+ ")
    ]
    more = len(lines) - _LISTED
    rest = [f"  and {more} more"] if more > 0 else []
    return "\n".join([*islice(lines, _LISTED), *rest])


class _CollectReports:
    """Records failed reports of collection."""

    def __init__(self) -> None:
        """Start empty."""
        self.reports: list[pytest.CollectReport] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a failure."""
        if report.failed:
            self.reports.append(report)


class _Together:
    """Keeps the processes together inside of a test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Let a ``@given`` test run each example in all processes."""
        options = _options_of(item)
        settle_given(item, seed=options.seed, seconds=PART * longest(options.timeout))
        try:
            return (yield)
        except (FailedExampleError, OutOfStepError) as found:
            raise found.original() from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record which processes made a test fail here."""
        report = yield
        error = None if call.excinfo is None else call.excinfo.value
        if isinstance(error, PeerError):
            setattr(report, BECAUSE, list(error.processes))
        return report
