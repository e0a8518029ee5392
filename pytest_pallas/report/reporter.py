"""Gather the records of all tests, and report them, in the process with the terminal.

``Reporter`` receives the records on the reports of tests, also from workers, sorts them in the
order of the tests, and at the end writes the files and prints the sections. ``Progress`` prints a
line from time to time in long runs, which otherwise print nothing for minutes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.registry import DeviceFacts
from pytest_pallas.decoding import decode
from pytest_pallas.pytest_session import (
    DEVICES,
    OUTPUT,
    PART_RESULT,
    RECORDS,
    REFUSAL,
    SECTION,
    SHARD,
    PytestSession,
    current,
)
from pytest_pallas.record import NotApplicable, from_json
from pytest_pallas.report.section import Line, Results, Section, as_text, number

if TYPE_CHECKING:
    from pytest_pallas.record import Record
    from pytest_pallas.results import RunProgress

#: Width of a table of costs if the output is not a terminal.
WIDTH_OF_FILES = 150


class Reporter:
    """Collects the records of a session, also from workers, and reports them."""

    def __init__(self, session: PytestSession, kept: RunProgress | None = None) -> None:
        """Gather for ``session``, whose tests are ``kept`` for its results."""
        self.session, self.kept = session, kept
        self.records: list[Record] = []
        self.mutants: dict[str, Mapping[str, Any]] = {}
        self.order: dict[str, int] = {}
        self.written: list[tuple[bool, str]] = []
        self.began_with_header = False
        self.costs = ""
        self.below: list[str] = []

    def pytest_report_header(self) -> list[str]:
        """Print the header: versions, backends and settings."""
        from pytest_pallas.report import terminal

        self.began_with_header = True
        return terminal.header(self.session)

    def in_order_of(self, ids: Sequence[str]) -> None:
        """Report in the order of these tests; results of workers come in another order."""
        self.order = {name: position for position, name in enumerate(ids)}

    def pytest_report_collectionfinish(self) -> list[str]:
        """Print the header, if the plugin was activated during collection, and the shard."""
        quiet = self.session.config.get_verbosity() < 0
        lines = [] if quiet or self.began_with_header else self.pytest_report_header()
        shard = self.session.shard_line
        return [*lines, f"pallas: {shard}"] if shard and not quiet else lines

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records from a report, which the terminal keeps until the end."""
        if not hasattr(report, RECORDS):
            return
        if hasattr(report, PART_RESULT):
            self.mutants[report.nodeid] = getattr(report, PART_RESULT)
        for plain in getattr(report, RECORDS):
            record = from_json(plain)
            self.records.append(record)
            self.session.config.hook.pytest_pallas_record(config=self.session.config, record=record)
        delattr(report, RECORDS)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Record the order of the tests: the records of workers arrive in any order."""
        self.in_order_of(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive from a worker the checks that do not apply. All workers send the same."""
        output = getattr(node, "workeroutput", {})
        for plain in output.get(OUTPUT, ()):
            entry: NotApplicable = decode(NotApplicable, plain)
            self.session.not_applicable.setdefault(entry.test, entry)
        if (shard := output.get(SHARD)) is not None:
            self.session.shard_line, self.session.empty_shard = shard
        for name, kinds in output.get(DEVICES, {}).items():
            self.session.told_devices[name] = DeviceFacts(kinds=tuple(kinds))
        self.session.refusal = (
            getattr(node, "workeroutput", {}).get(REFUSAL) or self.session.refusal
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the results, however the session ended."""
        resumed = None if self.kept is None else self.kept.resumed
        if self.kept is not None and resumed is not None:
            self.in_order_of(self.kept.collected)
        self.records.sort(key=lambda record: self.order.get(record.test, len(self.order)))
        # The run loop of a fleet credits the kills of its tests itself.
        by_fleet = self.session.fleet is not None and resumed is None
        if self.order and self.session.options.mutate is not None and not by_fleet:
            from pytest_pallas.mutate.item import credit_first_kills

            # in a resumed run, kills count anew in the order of all tests
            killed = self.session.killed if resumed is None else {**self.session.killed_earlier}
            self.records[:] = credit_first_kills(self.records, self.mutants, killed)
        self._sort_failures(session)
        self._record_costs(session)
        self._require_least(session)
        self._join_failures(session)
        if self.session.empty_shard and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # other machines run them
        if self.session.refusal:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if not self.session.options.writes:
            return
        if self.kept is not None and resumed is not None and not self.kept.begun:
            self.written = [(True, f"nothing was run; {resumed.path} is as it was")]
            return
        from pytest_pallas.report.files import write_files

        own: list[tuple[str, str]] = []
        if self.session.options.html is not None:
            wide = WIDTH_OF_FILES
            results = self._results(width=wide, wide=wide, color=False, verbosity=1)
            own = [(section.name, as_text(section, results)) for section in self._own_sections()]
        self.written = list(write_files(self.session, self.records, own, self.kept))
        if not all(done for done, _ in self.written):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _sort_failures(self, session: pytest.Session) -> None:
        """Print failures and reasons in the order of the tests."""
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        for reports in terminal.stats.values() if terminal is not None and self.order else ():
            if all(hasattr(report, "nodeid") for report in reports):
                reports.sort(key=lambda report: self.order.get(report.nodeid, len(self.order)))

    def _join_failures(self, session: pytest.Session) -> None:
        """Print failures with one cause as one block, which names the other checks."""
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        failed: list[Any] = [] if terminal is None else terminal.stats.get("failed", [])
        if len(failed) < 2 or session.config.get_verbosity() > 0:
            return
        from pytest_pallas.compat.testing import without_block
        from pytest_pallas.report.summary import others_by_test

        others = others_by_test(self.records)
        for report in failed:
            if not (group := others.get(report.nodeid, report.nodeid)):
                without_block(report)
            elif not isinstance(group, str):
                _add_likewise(report, ", ".join(r.test.rpartition("::")[2] for r in group))

    def _record_costs(self, session: pytest.Session) -> None:
        """Write the costs of compiled kernels, or compare them with the recorded ones."""
        if self.session.options.cost in ("off", "skip"):
            return
        from pytest_pallas.compile import report as costs

        try:
            self.costs = costs.write_costs(self.session, self.records)
        except (OptionError, OSError) as error:
            self.costs = f"--pallas-cost: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _require_least(self, session: pytest.Session) -> None:
        """Fail the run if coverage or the mutation score is below the least that is required.

        And if a key of ``unreached=`` is about nothing.
        """
        options = self.session.options
        if not (options.shard or options.replay):
            from pytest_pallas.mutate.report import others
            from pytest_pallas.report import coverage

            kernels = coverage.covered(others(self.records))
            self.below += coverage.shortfall(kernels, options.coverage_min)
            self.below += coverage.wrong_keys(kernels)
        if options.mutate is not None and options.mutate_min:
            from pytest_pallas.mutate import report as mutants

            self.below += mutants.shortfall(self.records, options.mutate_min)
        if self.below and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        from pytest_pallas.report import terminal

        if self.session.refusal:
            terminalreporter.write_line(f"ERROR: {self.session.refusal}", red=True)
        verbosity = self.session.config.get_verbosity()
        left_out = terminal.entries(self.session.not_applicable, self.records)
        if not self.records and not (left_out and verbosity >= 0):
            if self.costs:
                terminalreporter.write_line(self.costs)
            self._print_files(terminalreporter)
            return
        from pytest_pallas.report.section import declared_sections

        width = int(terminalreporter.config.get_terminal_writer().fullwidth)
        results = self._results(
            width=width,
            wide=width if terminalreporter.isatty else max(width, WIDTH_OF_FILES),
            color=bool(terminalreporter.hasmarkup),
            verbosity=verbosity,
        )
        terminalreporter.write_sep("=", "pallas")
        for section in (*declared_sections(), *self._own_sections()):
            for line in section.shown(results):
                if isinstance(line, Line):
                    terminalreporter.write_line(line.text, **{line.color: True})
                else:
                    terminalreporter.write_line(line)
        self._print_files(terminalreporter)

    def _results(self, **shown: Any) -> Results:
        """Make the data of all sections; ``shown`` are the fields that depend on the output."""
        from pytest_pallas.compile import report as compilers
        from pytest_pallas.mutate import report as mutants
        from pytest_pallas.report import terminal

        executed, compiled = compilers.split(
            mutants.others(self.records), self.session.families.values()
        )
        return Results(
            session=self.session,
            records=self.records,
            executed=executed,
            compiled=compiled,
            not_applicable=terminal.entries(self.session.not_applicable, self.records),
            costs=self.costs,
            below=self.below,
            **shown,
        )

    def _own_sections(self) -> Sequence[Section]:
        """List the sections of the project."""
        config = self.session.config
        return list(itertools.chain(*config.hook.pytest_pallas_report_sections(config=config)))

    def _print_files(self, terminalreporter: Any) -> None:
        """List the written files, and describe the run that was resumed."""
        if self.kept is not None and self.kept.resumed is not None:
            from pytest_pallas.results import resumed_line

            fleet = self.session.options.fleet is not None
            terminalreporter.write_line(resumed_line(self.kept.resumed, fleet=fleet))
        if self.kept is not None and self.kept.problem:
            terminalreporter.write_line(self.kept.problem, red=True)
        for done, line in self.written:
            terminalreporter.write_line(line, red=not done)


def _add_likewise(report: pytest.TestReport, names: str) -> None:
    """Name the other tests that fail for the same cause in the block of a failed test.

    A report that pytest made of a traceback stays as it is: its summary line is read from there.
    """
    if isinstance(report.longrepr, str):
        report.longrepr = f"{report.longrepr}\n  likewise  {names}"
        return
    sections: list[Any] = getattr(report.longrepr, "sections", report.sections)
    for position, (title, text, *rest) in enumerate(sections):
        if title == SECTION:
            sections[position] = (title, f"{text}\nlikewise: {names}", *rest)


# Progress lines.

#: The fraction of ``--pallas-fuzz-time`` between lines.
SHARE = 0.1

#: Seconds between lines, at least.
LEAST = 5.0

#: Seconds between lines of a run that has no such time, on a terminal.
SELDOM = 30.0


class Progress:
    """Counts examples and failures, in the process with the terminal."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        """Count for a session that fuzzes for ``seconds``; 0 if it draws a number of examples."""
        self.config = config
        self.seconds = seconds
        self.started = self.last = time.monotonic()
        self.examples = 0
        self.tests = 0
        self.every = 0
        self.kernels: set[str] = set()
        self.failures = 0
        self.now: dict[str, None] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Start the clock after collection."""
        self.started = self.last = time.monotonic()
        self.every = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Receive the number of tests that workers collect."""
        self.every = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record a running test: under xdist there are several."""
        self.now[nodeid] = None
        if not self.seconds:
            self._seldom()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record the end of a test."""
        self.now.pop(nodeid, None)
        self.tests += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the examples and failures of a report."""
        records: list[dict[str, Any]] = getattr(report, RECORDS, [])
        for record in records:
            self.examples += record["examples"]
            self.kernels.add(record["kernel"])
            self.failures += record["outcome"] == "failed"
        if records and self.seconds:
            self.pulse(0)

    def tick(self) -> None:
        """Print a line if it is time for one, while other machines run the tests."""
        if self.seconds:
            self.pulse(0)
        else:
            self._seldom()

    def pulse(self, examples: int) -> None:
        """Print a line if it is time for one; ``examples`` are not reported yet."""
        now = time.monotonic()
        if now - self.last < max(LEAST, SHARE * self.seconds) or not self._seen(0):
            return
        spent = now - self.started
        self._print(
            f"{spent:.0f} of {self.seconds:.0f} s, {max(self.seconds - spent, 0):.0f} s left, "
            f"{self.examples + examples:,} examples, {len(self.kernels)} kernels started"
            f"{self._fleet()}"
        )

    def _seldom(self) -> None:
        """Print a line in a long run without a time limit, if test names are not printed."""
        late = time.monotonic() - self.last >= SELDOM
        if late and self.kernels and self._seen(0) and not self._seen(1):
            spent = time.monotonic() - self.started
            self._print(f"{spent:.0f} s, {self.tests} of {self.every} tests{self._fleet()}")

    def _fleet(self) -> str:
        """Describe the workers of ``--pallas-fleet``."""
        fleet = current(self.config).fleet
        if fleet is None:
            return ""
        text = f", {fleet.done} of {fleet.tasks} tasks, {fleet.threads} running at a time"
        for many, what in ((len(fleet.refused), "refused"), (len(fleet.lost), "lost")):
            text += f", {number(many, 'worker')} {what}" if many else ""
        return text

    def _seen(self, verbosity: int) -> bool:
        """Whether the output is a terminal, and the verbosity is high enough."""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        on_terminal = reporter is not None and bool(reporter.isatty)
        return on_terminal and self.config.get_verbosity() >= verbosity

    def _print(self, text: str) -> None:
        self.last = time.monotonic()
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        failures = number(self.failures, "failure") if self.failures else "no failures"
        running = ", ".join(name.rpartition("::")[2] for name in self.now)
        reporter.ensure_newline()
        reporter.write_line(f"pallas: {text}, {failures}" + (f"; now {running}" * bool(running)))
