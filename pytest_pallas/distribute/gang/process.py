"""A process of a gang: a session of pytest that runs each test together with the others.

``serve`` answers the process of pytest that started it. The processes agree on the tests that they
collect, on the beginning and the end of each, and on each example of a ``@given`` test: all draw
the same, and a failure in one of them is a failure in all (``keep_in_step``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import os
import socket
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any

import pytest

from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends.ending import longest
from pytest_pallas.backends.processes import agree, begin_scope, end_scope
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.distributed import join
from pytest_pallas.compat.fuzzing import (
    hypothesis_seed,
    hypothesis_settings,
    set_hypothesis_settings,
)
from pytest_pallas.distribute.gang.messages import (
    BECAUSE,
    Collected,
    RunTest,
    Start,
    TestEnd,
)
from pytest_pallas.errors import GangError, PeerError, facts_of
from pytest_pallas.isolate.messages import StepNote, decoded, encoded, plain_reports
from pytest_pallas.isolate.worker import WorkerSession
from pytest_pallas.options import Options
from pytest_pallas.pytest_session import current
from pytest_pallas.run.fuzzing import SharedFailureError, of_all

#: Seconds after which JAX counts a silent process as dead.
HEARTBEAT = 20.0

#: The part of the time limit of a step for which a process waits for another one.
PART = 0.9

#: Number of tests that a difference between two collections lists.
_LISTED = 6

#: The host of this process, once it has started.
_hosts: list[GangSession] = []

#: Seconds that a process with a failed example waits for the others, to fail together with them.
PATIENCE = 2.0

#: Set on the function of a test that agrees already.
_AGREES = "pallas_agrees"


_REQUEST: Any = Start | RunTest


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Answer one message: ``Start`` with ``Collected``, ``RunTest`` with ``TestEnd``."""
    request: Start | RunTest = decoded(_REQUEST, payload)
    if isinstance(request, Start):
        return encoded(_started(request, say))
    return encoded(_hosts[0].run_together(request))


def _started(start: Start, say: Callable[[bytes], None]) -> Collected:
    """Join the program, configure pytest, collect, and compare with the other processes."""
    os.chdir(start.opening.folder)
    say(StepNote(step="joining", limit=start.seconds).encode())
    join(start.position, start.seconds, HEARTBEAT)
    try:
        host = GangSession(start, say)
    except pytest.UsageError as error:
        return Collected(problem=str(error))
    _hosts.append(host)
    return host.collect(start.seconds)


class GangSession(WorkerSession):
    """The session of pytest of this process."""

    def __init__(self, start: Start, say: Callable[[bytes], None]) -> None:
        """Configure pytest."""
        self._process = start.position.index
        super().__init__(start.opening, say)
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
            reports=plain_reports(self.config, self.recorder.failed_collections),
            backends=[label(backend) for backend in state.selection.backends],
            not_applicable=list(state.not_applicable.values()),
            shard=(state.shard_line, state.empty_shard),
            timeout=max((_options_of(item).timeout for item in items), default=0.0),
        )

    def _difference(self, names: Sequence[str], seconds: float) -> str:
        """Return the difference of this collection from that of process 0; "" if there is none."""
        digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()
        digests = [
            statement.value for statement in agree("collected", value=digest, timeout=seconds)
        ]
        if len(set(digests)) == 1:
            return ""
        first, *_ = agree("tests", value=names, timeout=seconds)
        if digests[self._process] == digests[0]:
            return ""
        return (
            f"it collected other tests than process 0 ({first.host}), so they cannot run "
            f"together:\n{_listed(first.value, names, self._process)}"
        )

    def run_together(self, request: RunTest) -> TestEnd:
        """Run a test with all other processes, and return how it ended."""
        end = TestEnd(process=self._process, host=socket.gethostname())
        item = self.items[request.nodeid]
        timeout = _options_of(item).timeout
        self.alarm.begin("the start of the test", timeout)
        limit = PART * longest(timeout)
        begin_scope(request.key)
        try:
            agree("begin", subject=request.nodeid, timeout=limit)
        except GangError as error:
            self.alarm.stop()
            return dataclasses.replace(end, absent=str(error))
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
        return dataclasses.replace(end, **vars(reply))


def _options_of(item: pytest.Item) -> Options:
    """Return the options of a test, without those of a wrong mark: its set-up reports that."""
    state = current(item.config)
    try:
        return state.options_for(item)
    except OptionError:
        return state.options


def _outcome(reports: Sequence[pytest.TestReport]) -> str:
    """Return the outcome of a test in this process."""
    worst = [report.outcome for report in reports if report.outcome != "passed"]
    return worst[0] if worst else "passed"


def _listed(theirs: Sequence[str], ours: Sequence[str], process: int) -> str:
    """Return the first tests that only one of two processes has, or another order."""
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


class _Together:
    """Keeps the processes together inside of a test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Let a ``@given`` test run each example in all processes."""
        options = _options_of(item)
        keep_in_step(item, seed=options.seed, seconds=PART * longest(options.timeout))
        try:
            return (yield)
        except (SharedFailureError, OutOfStepError) as failure:
            for note in getattr(failure, "__notes__", ()):  # Hypothesis' about the example
                failure.error.add_note(note)
            raise failure.error from None

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


# The examples of ``@given`` tests.


class OutOfStepError(BaseException):
    """A failure that the other processes do not know, because they wait in a collective.

    Not an ``Exception``, so that Hypothesis does not run further examples, in which this process
    would be alone.
    """

    def __init__(self, error: Exception) -> None:
        """Keep the failure."""
        super().__init__(str(error))
        self.error = error


def keep_in_step(item: pytest.Item, *, seed: int, seconds: float) -> None:
    """Let a ``@given`` test draw the same in all processes, which agree on each example.

    Args:
      item: the test; nothing is done for others.
      seed: of the draws, unless the test has a seed of its own.
      seconds: how long to wait for the other processes at the end of an example.
    """
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if not getattr(test, "is_hypothesis_test", False):
        return
    inner = test.hypothesis.inner_test
    if getattr(inner, _AGREES, False):
        return
    import hypothesis

    own = hypothesis_settings(test) or hypothesis.settings.default
    assert own is not None  # it is the current profile
    if hypothesis_seed(test) is None and not own.derandomize:
        hypothesis.seed(seed)(test)
    changes: dict[str, Any] = {
        # Decisions by the clock would differ between processes.
        "deadline": None,
        "suppress_health_check": list(hypothesis.HealthCheck),
        "phases": [phase for phase in own.phases if phase.name != "explain"],
        "report_multiple_bugs": False,
        "database": of_all(own.database),
    }
    set_hypothesis_settings(test, hypothesis.settings(own, **changes))

    @functools.wraps(inner)
    def together(*args: Any, **rest: Any) -> Any:
        __tracebackhide__ = True
        value: Any = None
        failed: Exception | None = None
        try:
            value = inner(*args, **rest)
        except Exception as error:
            failed = error
        failed = _agreed(failed, seconds)
        if failed is None:
            return value
        raise SharedFailureError(failed)

    setattr(together, _AGREES, True)
    test.hypothesis.inner_test = together


def _agreed(failed: Exception | None, seconds: float) -> Exception | None:
    """Return the error of an example, here or in another process; None if it passed everywhere.

    Raises:
      OutOfStepError: the other processes did not come to the end of the example.
    """
    if failed is not None and facts_of(failed).shared:
        return failed  # all processes know of it, and are here
    if isinstance(failed, PeerError):
        if failed.step == "example":
            return failed
        raise OutOfStepError(failed)
    problem = "" if failed is None else f"{type(failed).__name__}: {failed}"
    try:
        statements = agree(
            "example", problem=problem, timeout=seconds if failed is None else PATIENCE
        )
    except PeerError as error:
        return error
    if failed is not None and len(statements) == 1:
        raise OutOfStepError(failed)
    return failed
