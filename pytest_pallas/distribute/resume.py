"""Keep what a run has done while it runs, and take up a run that was cut off.

``RunKeeper`` is the plugin of ``--pallas-results`` and ``--pallas-resume``: it joins the reports of
each test to a ``FinishedTest``, writes it to the journal, and reports the tests of a run that is
taken up as if they had ended in this one.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.compat.testing import count_report, say
from pytest_pallas.decoding import DataError, decode, jsonable
from pytest_pallas.distribute.messages import first_attribute, new_report, put_records
from pytest_pallas.distribute.shards import set_digests
from pytest_pallas.options import place_of
from pytest_pallas.pytest_session import (
    DONE,
    PART_RESULT,
    RAISED_ON,
    RECORDS,
    STATUS,
    Done,
    PytestSession,
    done_of,
)
from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import PREFIX, properties
from pytest_pallas.report.files import environment, journal_head, known_options
from pytest_pallas.results import (
    FailedPhase,
    FinishedTest,
    RunJournal,
    RunProgress,
    RunResults,
    partial_path,
    plain_test,
    read_results,
)


def load_done_tests(state: PytestSession, done: Done) -> None:
    """Let a process know the finished tests."""
    state.done = done.tests
    state.raised.update(done.raised)
    state.killed.update(done.killed)


def leave_out_done(state: PytestSession, items: list[pytest.Item]) -> None:
    """Remove the tests that are done.

    They are not deselected: they are counted with their results.
    """
    state.done_items = [item for item in items if item.nodeid in state.done]
    items[:] = [item for item in items if item.nodeid not in state.done]


# Tests that ended, from pytest's reports, and as reports again.


#: The phases that end a test: pytest-xdist reports ``"???"`` if a worker died.
_LAST = ("teardown", "???")


class EndedTests:
    """Joins the reports of each test, which come one by one, and from several workers."""

    def __init__(self) -> None:
        """Start empty."""
        self._reports: dict[Hashable, list[pytest.TestReport]] = {}
        self._records: dict[Hashable, list[dict[str, Any]]] = {}

    def add(self, report: pytest.TestReport) -> tuple[FinishedTest, list[dict[str, Any]]] | None:
        """Take a report; the test and its records as plain values if it is the last one."""
        key = (report.nodeid, getattr(report, "node", None))
        reports = self._reports.setdefault(key, [])
        reports.append(report)
        records = self._records.setdefault(key, [])
        records += getattr(report, RECORDS, ())  # now: the reporter takes them off
        if report.when not in _LAST:
            return None
        del self._reports[key], self._records[key]
        return finished(reports), records


def finished(reports: Sequence[pytest.TestReport]) -> FinishedTest:
    """Make a finished test of its reports."""
    last = reports[-1]
    # pytest-rerunfailures reports a failure that it tries again as one of outcome "rerun"
    failed = [report for report in reports if report.outcome == "failed"]
    expected = next((report for report in reports if hasattr(report, "wasxfail")), None)
    skipped = next((report for report in reports if report.outcome == "skipped"), None)
    outcome, reason = "passed", ""
    skipped_at: tuple[str, int | str] | tuple[()] = ()
    if failed:
        during = any(report.when not in ("setup", "teardown") for report in failed)
        outcome = "failed" if during else "error"
    elif expected is not None:
        outcome = "xfailed" if expected.outcome == "skipped" else "xpassed"
        reason = str(getattr(expected, "wasxfail", ""))
    elif skipped is not None:
        outcome, reason = "skipped", str(skipped.longrepr)
        if isinstance(skipped.longrepr, tuple):
            file, number, reason = skipped.longrepr
            skipped_at = (str(file), _plain(number))
    return FinishedTest(
        test=last.nodeid,
        outcome=outcome,
        seconds=round(sum(report.duration for report in reports), 4),
        location=failed[0].location if failed else last.location,
        reason=reason,
        place=skipped_at,
        failures=tuple(
            FailedPhase(
                report.when if report.when in ("setup", "teardown") else "call",
                str(report.longrepr),  # without the worker of pytest-xdist, as `longreprtext` has
                _summary(report.longrepr),
                tuple((str(title), str(text)) for title, text in report.sections),
            )
            for report in failed
        ),
        status=first_attribute(reports, STATUS, ""),
        raised=tuple(first_attribute(reports, RAISED_ON, ())),
        properties=tuple(
            (str(name), _plain(value))
            for name, value in last.user_properties
            if not str(name).startswith(PREFIX)
        ),
        part=dict(first_attribute(reports, PART_RESULT, {})),
    )


def _summary(error: object) -> str:
    return str(getattr(getattr(error, "reprcrash", None), "message", ""))


def _plain(value: object) -> Any:
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def reports_of(test: FinishedTest, records: Sequence[Record]) -> Iterator[pytest.TestReport]:
    """Yield reports of a test of an earlier run, as if it had ended in this one.

    Args:
      test: the test.
      records: its records.
    """
    reports = [_failed(test, phase) for phase in test.failures if phase.when != "teardown"]
    if test.outcome == "skipped":
        file, line = test.place or ("", 0)
        where = (file, line if isinstance(line, int) else None, test.reason)
        reports.append(_report(test, "call", "skipped", where))
    elif test.outcome in ("xfailed", "xpassed"):
        kind = "skipped" if test.outcome == "xfailed" else "passed"
        reports.append(_report(test, "call", kind, test.reason if kind == "skipped" else None))
        setattr(reports[-1], "wasxfail", test.reason)  # noqa: B010 - of pytest's skipping
    elif not reports:
        reports.append(_report(test, "call", "passed"))
    first = reports[0]
    first.duration = test.seconds
    put_records(first, records)
    if test.status:
        setattr(first, STATUS, test.status)
    if test.raised:
        setattr(first, RAISED_ON, list(test.raised))
    if test.part:
        setattr(first, PART_RESULT, dict(test.part))
    ends = [_failed(test, phase) for phase in test.failures if phase.when == "teardown"]
    last = ends or [_report(test, "teardown", "passed")]
    own: list[tuple[str, object]] = [pair for record in records for pair in properties(record)]
    last[-1].user_properties = [*test.properties, *own]
    yield from (*reports, *last)


@dataclass(frozen=True)
class _Crash:
    """An error in short."""

    message: str


@dataclass(frozen=True)
class _FailureText:
    """A failure as pytest prints it: its text, and its short form in ``reprcrash``."""

    message: str
    reprcrash: _Crash

    def toterminal(self, writer: Any) -> None:
        """Print it."""
        writer.line(self.message)

    def __str__(self) -> str:
        return self.message


def _failed(test: FinishedTest, failure: FailedPhase) -> pytest.TestReport:
    short = failure.summary
    text = _FailureText(failure.message, _Crash(short)) if short else failure.message
    return _report(test, failure.when, "failed", text, failure.sections)


def _report(
    test: FinishedTest,
    when: Any,
    outcome: Any,
    text: Any = None,
    sections: Sequence[tuple[str, str]] = (),
) -> pytest.TestReport:
    location = test.location or (test.test.partition("::")[0], None, test.test)
    return new_report(test.test, location, when, outcome, text, sections=sections)


# Keeps what a run has done: in a journal while it runs, and for its results at the end.


#: The name of the registered plugin.
PLUGIN = "pallas-run"


class RunKeeper(RunProgress):
    """The plugin for ``--pallas-results`` and ``--pallas-resume`` in the reporting process."""

    def __init__(self, session: PytestSession, resumed: RunResults | None = None) -> None:
        """Begin with the tests of ``resumed``."""
        super().__init__(resumed=resumed)
        self.session = session
        self._ended = EndedTests()
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
            node.workerinput[DONE] = jsonable(done_of(self.resumed))

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
            self._append(_ended(test, records))

    def keep_part(self, nodeid: str, result: Mapping[str, Any]) -> None:
        """Record what a worker found of a test that has not ended."""
        self.parts.setdefault(nodeid, []).append(result)
        self._append(_part(nodeid, result))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Set the exit status if no test was left: that of the tests that were done."""
        none_left = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        if none_left and self.begun and self.resumed is not None:
            session.exitstatus = pytest.ExitCode.OK

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
            first = [_ended(test, map(to_json, records[test.test])) for test in self.tests]
            first += [_part(name, part) for name, parts in self.parts.items() for part in parts]
        self.begun = True
        path = self.session.options.results
        if path is None or not self.collected:
            return
        set_digests(self.session, self.collected)
        try:
            head = journal_head(self.session, self.collected)
            self.journal = RunJournal(partial_path(path), [head, *first])
        except OSError as error:
            self._report_loss(error)

    def _append(self, plain: Mapping[str, Any]) -> None:
        try:
            if self.journal is not None:
                self.journal.append(plain)
        except OSError as error:
            self._report_loss(error)

    def _report_loss(self, error: OSError) -> None:
        """Say once that a run that is cut off loses results, and go on."""
        if self.problem:
            return
        path = self.session.options.results
        assert path is not None
        self.problem = (
            f"cannot write {partial_path(path).name}: {error}. Results are lost if this run is cut "
            "off"
        )
        say(self.session.config, self.problem, verbosity=-9, red=True)


def _ended(test: FinishedTest, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the line of a journal about a test that ended."""
    return {"ended": plain_test(test), "records": list(records)}


def _part(nodeid: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Make the line of a journal about a part of a test."""
    return {"part_of": nodeid, "result": result}


# ``--pallas-resume``: what must be the same, and the results of tests that are done.


#: Limit on the differences, and on the tests, that a message names.
_MOST = 5


def resumed_run(session: PytestSession) -> RunResults | None:
    """Read the run of ``--pallas-resume``; None if there is none yet.

    A job that is started again and again has one command line. So a missing file is no error if it
    is also the file of ``--pallas-results``.

    Raises:
      OptionError: the file cannot be read, or is of a run that cannot be taken up here.
    """
    option = session.options.resume
    assert option is not None
    folder = session.config.invocation_params.dir
    path = folder / option
    if path == _results_path(session) and not path.exists() and not partial_path(path).exists():
        return None
    where = place_of(session.config, "resume")
    try:
        resumed = read_results(path, latest=True)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    try:
        require_readable(resumed)
    except DataError as error:
        raise OptionError(
            f"{where}: {resumed.path} is not a file of --pallas-results: {error}"
        ) from None
    if not resumed.collected:
        raise OptionError(
            f"{where}: {resumed.path} does not say which tests its run had, so it cannot be taken "
            "up"
        )
    if Path(resumed.path).is_relative_to(folder):
        resumed = replace(resumed, path=str(Path(resumed.path).relative_to(folder)))
    set_digests(session, resumed.collected)
    differences = _differences(session, resumed)
    if differences:
        raise OptionError(
            f"{where}: {resumed.path} is of another run: {_listed(differences, '; ')}. Run with "
            "what it had, or start anew without --pallas-resume"
        )
    return resumed


def require_readable(results: RunResults) -> None:
    """Check now what is read at the end of the run: what the tests have found of mutants.

    Raises:
      DataError: it is not what such a test writes.
    """
    for test in results.tests:
        if test.part:
            # late: it imports JAX
            from pytest_pallas.mutate.item import MutantsPart

            try:
                decode(MutantsPart, test.part)
            except DataError as error:
                raise error.inside(f".tests[{test.test!r}].part") from None


def _results_path(session: PytestSession) -> Path | None:
    """Return the results file that was given, also where another machine writes it."""
    config = session.config
    option = config.getoption("pallas_results") or config.getini("pallas_results")
    return config.invocation_params.dir / option if option else None


def _differences(session: PytestSession, resumed: RunResults) -> list[str]:
    """List what differs between a run and this one."""
    here = json.loads(json.dumps([environment(), known_options(session)]))
    texts: list[str] = []
    for title, mine, theirs in zip(
        ("", "option "), here, (resumed.environment, resumed.options), strict=True
    ):
        for name in mine:
            # the process that starts workers knows the given backends only
            if name == "backends" and name not in theirs:
                continue
            if mine[name] != theirs.get(name):
                texts.append(
                    f"{title}{name} is {_text(mine[name])}, and was {_text(theirs.get(name))}"
                )
    before, now = resumed.files, session.file_digests
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            how = "has changed" if name in before and name in now else "is new"
            texts.append(f"{name} {how if name in now else 'is gone'}")
    return texts


def _listed(texts: Sequence[str], between: str = ", ") -> str:
    """Join the first texts, and say how many more there are."""
    rest = len(texts) - _MOST
    return between.join(texts[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return "not given" if value is None else str(value)


def require_same_tests(config: pytest.Config, resumed: RunResults, left: Sequence[str]) -> None:
    """Check that the tests that are left are those that the run has not finished.

    Raises:
      pytest.UsageError: they differ.
    """
    unfinished = dict.fromkeys(resumed.unfinished)
    missing = [name for name in unfinished if name not in set(left)]
    new = [name for name in left if name not in unfinished]
    texts = [
        f"{len(names)} {what}: {_listed(names)}"
        for names, what in (
            (missing, "unfinished tests of that run are not collected here"),
            (new, "tests that are collected here are not of that run"),
        )
        if names
    ]
    if texts:
        raise pytest.UsageError(
            f"{place_of(config, 'resume')}: {resumed.path} is of a run of other tests. "
            f"{'. '.join(texts)}. Select the same tests as that run, or start anew without "
            "--pallas-resume"
        )


def records_by_test(resumed: RunResults) -> dict[str, list[Record]]:
    """Return the records of each test that ended."""
    records: dict[str, list[Record]] = {test.test: [] for test in resumed.tests}
    for record in resumed.records:
        if record.test in records:
            records[record.test].append(record)
    return records


def repeat_reports(config: pytest.Config, resumed: RunResults) -> None:
    """Report the tests that are done, to all but the terminal's line of dots, which counts them."""
    manager: Any = config.pluginmanager
    terminal = manager.get_plugin("terminalreporter")
    report_to = manager.subset_hook_caller("pytest_runtest_logreport", remove_plugins=[terminal])
    records = records_by_test(resumed)
    for test in resumed.tests:
        for report in reports_of(test, records[test.test]):
            report_to(report=report)
            count_report(config, report)
