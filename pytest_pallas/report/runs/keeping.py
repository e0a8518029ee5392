"""Keeps what a run has done: in a journal while it runs, and for its results at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import pytest

from pytest_pallas.record import to_json
from pytest_pallas.report.results import first_line
from pytest_pallas.report.runs.finished import EndedTests
from pytest_pallas.report.runs.resuming import records_by_test, repeat_reports, require_same_tests
from pytest_pallas.results import FinishedTest, Journal, RunResults, partial_path
from pytest_pallas.results.model import plain_test
from pytest_pallas.session import DONE, PytestSession
from pytest_pallas.session.done import done_of

#: The name of the registered plugin.
PLUGIN = "pallas-run"


class RunKeeper:
    """The plugin for ``--pallas-results`` and ``--pallas-resume`` in the reporting process.

    Attributes:
      resumed: the run that is taken up, or None.
      collected: node ids of all tests, once they are collected.
      tests: the tests that ended, those of the run that is taken up included.
      parts: what workers found of tests that have not ended, as in ``RunResults``.
      begun: whether tests were collected, and fit to the run that is taken up.
      problem: why the journal lacks something; "" if it does not.
    """

    def __init__(
        self,
        session: PytestSession,
        digest: Callable[[Sequence[str]], None],
        resumed: RunResults | None = None,
    ) -> None:
        """Begin with the tests of ``resumed``; ``digest`` sets the session's digests of files."""
        self.session, self.resumed, self._digest = session, resumed, digest
        self.collected: Sequence[str] = ()
        self.tests: list[FinishedTest] = []
        self.parts: dict[str, list[Mapping[str, Any]]] = {}
        self.begun = False
        self.problem = ""
        self._ended = EndedTests()
        self._journal: Journal | None = None
        self._done = frozenset[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Begin before the tests, and report the tests of the run that is taken up after them.

        Before them, pytest would take their failures for failures of the collection.
        """
        if session.config.option.collectonly:
            return (yield)
        if not session.config.pluginmanager.has_plugin("dsession"):  # of pytest-xdist
            remote = self.session.remote_tests
            here = [item.nodeid for item in session.items] if remote is None else remote
            self._begin(here)
        try:
            return (yield)
        finally:
            if self.begun and self.resumed is not None:
                repeat_reports(session.config, self.resumed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist what is done: all must collect the same tests."""
        if self.resumed is not None:
            node.workerinput[DONE] = done_of(self.resumed).plain()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Begin with the tests that the first worker collects."""
        if not self.begun:
            self._begin(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test runs."""
        self._append({"started": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test with its last report."""
        if report.nodeid in self._done:
            return
        ended = self._ended.add(report)
        if ended is not None:
            test, records = ended
            self.tests.append(test)
            self.parts.pop(test.test, None)
            self._append({"ended": plain_test(test), "records": records})

    def keep_part(self, nodeid: str, result: Mapping[str, Any]) -> None:
        """Record what a worker found of a test that has not ended."""
        self.parts.setdefault(nodeid, []).append(result)
        self._append({"part_of": nodeid, "result": result})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """If no test was left, the run is that of the tests that were done."""
        none_left = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        if none_left and self.begun and self.resumed is not None:
            session.exitstatus = pytest.ExitCode.OK

    def close(self, *, written: bool) -> None:
        """Close the journal, and remove it if the results are ``written``."""
        if self._journal is not None:
            self._journal.close(remove=written)
            self._journal = None

    def _begin(self, left: Sequence[str]) -> None:
        """Begin the journal, with what is done.

        Raises:
          pytest.UsageError: other tests are left than those of the run that is taken up.
        """
        first: list[dict[str, Any]] = []
        self.collected = list(left)
        if self.resumed is not None:
            require_same_tests(self.session.config, self.resumed, left)
            self.collected = self.resumed.collected
            self.tests = list(self.resumed.tests)
            self._done = frozenset(test.test for test in self.tests)
            self.parts = {name: list(parts) for name, parts in self.resumed.parts.items()}
            records = records_by_test(self.resumed)
            first = [
                {
                    "ended": plain_test(test),
                    "records": [to_json(record) for record in records.get(test.test, ())],
                }
                for test in self.tests
            ]
            first += [
                {"part_of": name, "result": result}
                for name, parts in self.parts.items()
                for result in parts
            ]
        self.begun = True
        path = self.session.options.results
        if path is None or not self.collected:
            return
        self._digest(self.collected)
        try:
            head = first_line(self.session, self.collected)
            self._journal = Journal(partial_path(path), [head, *first])
        except OSError as error:
            self._tell(error)

    def _append(self, plain: Mapping[str, Any]) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append(plain)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Say once that a run that is cut off loses results, and go on."""
        if self.problem:
            return
        path = self.session.options.results
        assert path is not None
        self.problem = (
            f"cannot write {partial_path(path).name}: {error}. Results are lost if this run is cut "
            "off"
        )
        terminal: Any = self.session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"pallas: {self.problem}", red=True)
