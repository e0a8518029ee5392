"""Run the pytest session of one process of a gang: each test runs in all processes together.

``serve`` answers the pytest process that started this one. The processes agree on the tests that
they collect, and at the beginning and the end of each test. In a ``@given`` test they draw the same
examples and agree after each: an example that fails in one process fails in all
(``keep_in_step``).
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

from pallas_sim.errors import PallasError
from pytest_pallas.backends.ending import longest
from pytest_pallas.backends.processes import agree, begin_scope, end_scope
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.distributed import join
from pytest_pallas.compat.fuzzing import (
    hypothesis_seed,
    hypothesis_settings,
    set_hypothesis_settings,
)
from pytest_pallas.distribute.messages import (
    BECAUSE,
    Collected,
    RunTest,
    Start,
    TestEnd,
)
from pytest_pallas.errors import GangError, PeerError, facts_of
from pytest_pallas.isolate.messages import StepNote, decoded, encoded, plain_reports
from pytest_pallas.isolate.worker import WorkerSession
from pytest_pallas.pytest_session import current
from pytest_pallas.run.agreement import SharedFailureError, of_all

#: Seconds without a heartbeat after which JAX counts a process as dead.
HEARTBEAT = 20.0

#: Fraction of a step's time limit for which a process waits for another one. Less than 1, so that
#: the wait ends with an error that names the missing process before the limit ends this one.
PART = 0.9

#: Most tests that the message about two different collections lists.
_LISTED = 6

#: The session of this process; empty until ``Start`` was answered.
_sessions: list[GangSession] = []

#: Seconds that a process with a failed example waits for the others to end theirs. Short, because
#: they may wait in a collective that this process does not reach.
PATIENCE = 2.0

#: Attribute of a test function that ``keep_in_step`` has wrapped, so that it does so once.
_WRAPPED = "pallas_agrees"


_REQUEST: Any = Start | RunTest


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Answer one message: ``Start`` with ``Collected``, ``RunTest`` with ``TestEnd``."""
    request: Start | RunTest = decoded(_REQUEST, payload)
    if isinstance(request, Start):
        return encoded(_started(request, say))
    return encoded(_sessions[0].run_together(request))


def _started(start: Start, say: Callable[[bytes], None]) -> Collected:
    """Join the JAX program, configure pytest and collect; return the tests, or the problem."""
    os.chdir(start.opening.folder)
    say(StepNote(step="joining", limit=start.seconds).encode())
    join(start.position, start.seconds, HEARTBEAT)
    try:
        session = GangSession(start, say)
    except pytest.UsageError as error:
        return Collected(problem=str(error))
    _sessions.append(session)
    return session.collect(start.seconds)


class GangSession(WorkerSession):
    """Runs the tests of one process of the gang, in a pytest session of its own."""

    def __init__(self, start: Start, say: Callable[[bytes], None]) -> None:
        """Configure pytest, and register the hooks that keep the processes together."""
        self._process = start.position.index
        super().__init__(start.opening, say)
        self.config.pluginmanager.register(_GangHooks())

    def collect(self, seconds: float) -> Collected:
        """Collect all tests, and return them; ``problem`` says why the gang cannot run them."""
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
            timeout=max(
                (current(item.config).usual_options_for(item).timeout for item in items),
                default=0.0,
            ),
        )

    def _difference(self, nodeids: Sequence[str], seconds: float) -> str:
        """Return how the node ids differ from those of process 0; "" if they are the same."""
        digest = hashlib.blake2b(json.dumps(nodeids).encode(), digest_size=16).hexdigest()
        digests = [
            statement.value for statement in agree("collected", value=digest, timeout=seconds)
        ]
        if len(set(digests)) == 1:
            return ""
        # The digests are short. Only if they differ do the processes exchange all node ids.
        first, *_ = agree("tests", value=nodeids, timeout=seconds)
        if digests[self._process] == digests[0]:
            return ""
        return (
            f"it collected other tests than process 0 ({first.host}), so they cannot run "
            f"together:\n{_describe_difference(first.value, nodeids, self._process)}"
        )

    def run_together(self, request: RunTest) -> TestEnd:
        """Run a test together with all other processes, and return how it ended in this one."""
        end = TestEnd(process=self._process, host=socket.gethostname())
        item = self.items[request.nodeid]
        timeout = current(item.config).usual_options_for(item).timeout
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


def _outcome(reports: Sequence[pytest.TestReport]) -> str:
    """Return the outcome of a test: "failed" if a phase failed, else "skipped" if one was."""
    outcomes = {report.outcome for report in reports}
    return next((worst for worst in ("failed", "skipped") if worst in outcomes), "passed")


def _describe_difference(theirs: Sequence[str], ours: Sequence[str], process: int) -> str:
    """List the first tests that only one of two processes has; or say that the order differs."""
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


class _GangHooks:
    """The hooks of pytest that keep the processes together while a test runs."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Wrap a ``@given`` test with ``keep_in_step``, and raise the error of its example.

        The wrappers of that error are for Hypothesis; reports must show the error itself.
        """
        options = current(item.config).usual_options_for(item)
        keep_in_step(item, seed=options.seed, seconds=PART * longest(options.timeout))
        try:
            return (yield)
        except (SharedFailureError, OutOfStepError) as failure:
            for note in getattr(failure, "__notes__", ()):  # where Hypothesis describes the example
                failure.error.add_note(note)
            raise failure.error from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Return the report, with the processes whose failure made the test fail here."""
        report = yield
        error = None if call.excinfo is None else call.excinfo.value
        if isinstance(error, PeerError):
            setattr(report, BECAUSE, list(error.processes))
        return report


# The examples of ``@given`` tests.


class OutOfStepError(BaseException):
    """An example failed in this process only, and the others do not know.

    They may wait in a collective that this process does not reach. It is no ``Exception``, because
    Hypothesis would catch that and run more examples, without the other processes.
    """

    def __init__(self, error: Exception) -> None:
        """Keep the error of the example."""
        super().__init__(str(error))
        self.error = error


def keep_in_step(item: pytest.Item, *, seed: int, seconds: float) -> None:
    """Make a ``@given`` test draw the same examples in all processes, and agree after each.

    Args:
      item: the test. If it is no ``@given`` test, it stays as it is.
      seed: of the draws, unless the test has a seed of its own or is derandomized.
      seconds: how long to wait for the other processes at the end of an example.
    """
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if not getattr(test, "is_hypothesis_test", False):
        return
    inner = test.hypothesis.inner_test
    if getattr(inner, _WRAPPED, False):
        return
    import hypothesis

    own = hypothesis_settings(test) or hypothesis.settings.default
    assert own is not None  # it is the current profile
    if hypothesis_seed(test) is None and not own.derandomize:
        hypothesis.seed(seed)(test)
    changes: dict[str, Any] = {
        # Nothing may depend on the clock: the processes would decide differently.
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
        failed = _agreed_error(failed, seconds)
        if failed is None:
            return value
        raise SharedFailureError(failed)

    setattr(together, _WRAPPED, True)
    test.hypothesis.inner_test = together


def _agreed_error(failed: Exception | None, seconds: float) -> Exception | None:
    """Agree with the other processes on the end of an example, and return its error.

    It is the error of this process, or a ``PeerError`` about another one; None if the example
    passed in all.

    Raises:
      OutOfStepError: it failed here, and another process did not come to its end.
    """
    if failed is not None and facts_of(failed).shared:
        return failed  # all processes raise it at this point
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
