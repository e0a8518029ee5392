"""The part of the plugin that reports: in the one process that has a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pallas.errors import OptionError
from pytest_pallas.session import Session

if TYPE_CHECKING:
    from pytest_pallas.record import Record


#: The attribute of a ``TestReport`` that holds records as plain values: pytest-xdist serialises
#: a report's attributes, so they reach the controller without files.
ATTRIBUTE = "pallas_records"

#: Columns that a table of costs may take where the output is no terminal, and no line breaks.
WIDTH_OF_FILES = 150


class Reporter:
    """Gathers the records of a session, from workers too, and reports them."""

    def __init__(self, session: Session) -> None:
        """Gather for ``session``."""
        self.session = session
        self.records: list[Record] = []
        self.order: dict[str, int] = {}
        self.unwritten = ""
        self.costs = ""

    def pytest_report_header(self) -> list[str]:
        """Say what this session runs on."""
        from pytest_pallas.report import terminal

        return terminal.header(self.session)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records off a report."""
        if not hasattr(report, ATTRIBUTE):
            return
        from pytest_pallas.report.collect import records_of

        for record in records_of(report):
            self.records.append(record)
            self.session.config.hook.pytest_pallas_record(config=self.session.config, record=record)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Learn the order of the tests: the records of workers arrive as they please."""
        self.order = {name: position for position, name in enumerate(ids)}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the results, however the session ended."""
        self.records.sort(key=lambda record: self.order.get(record.test, len(self.order)))
        self._record_costs(session)
        path = self.session.options.results
        if path is None:
            return
        from pytest_pallas.report import results

        try:
            results.write(path, self.session, self.records)
        except OSError as error:  # the folder was there when the session began
            shown = self._shown(path)
            self.unwritten = f"--pallas-results={shown}: cannot write there any more: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _record_costs(self, session: pytest.Session) -> None:
        """Write or compare the costs of what was compiled."""
        if self.session.options.cost == "off":
            return
        from pytest_pallas.report import costs

        try:
            self.costs = costs.settle(self.session, self.records)
        except (OptionError, OSError) as error:
            self.costs = f"--pallas-cost: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if not self.records:
            if self.costs:
                terminalreporter.write_line(self.costs)
            return
        from pytest_pallas import compat
        from pytest_pallas.report import compilers, goldens, inputs, terminal

        width = compat.terminal_width(terminalreporter)
        color = bool(terminalreporter.hasmarkup)
        terminalreporter.write_sep("=", "pallas")
        families = self.session.families
        executed, compiled = compilers.split(self.records, families.values())
        if executed:
            text = terminal.summary(executed, families=list(families), width=width, color=color)
            terminalreporter.write_line(text)
        for line in terminal.footnotes(executed):
            terminalreporter.write_line(line)
        kernels = inputs.covered(executed)  # what a compiler gets has no values
        if kernels:
            terminalreporter.write_line(inputs.summary(kernels))
        for line in inputs.warnings(kernels):
            terminalreporter.write_line(line, yellow=True)
        if not terminalreporter.isatty:
            width = max(width, WIDTH_OF_FILES)
        for text in compilers.sections(compiled, width=width, color=color):
            terminalreporter.write_line(text)
        if self.costs:
            terminalreporter.write_line(self.costs)
        for line in goldens.summary(self.session, self.records):
            terminalreporter.write_line(line)
        path = self.session.options.results
        if self.unwritten:
            terminalreporter.write_line(self.unwritten, red=True)
        elif path is not None:
            terminalreporter.write_line(
                f"{len(self.records)} records written to {self._shown(path)}"
            )

    def _shown(self, path: Path) -> Path:
        """A path as its user gave it."""
        folder = self.session.config.invocation_params.dir
        return path.relative_to(folder) if path.is_relative_to(folder) else path
