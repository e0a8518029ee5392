"""Progress lines for long runs, which otherwise print nothing for minutes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_pallas.report.reporter import ATTRIBUTE
from pytest_pallas.session import current

#: The fraction of ``--pallas-fuzz-time`` between lines.
SHARE = 0.1

#: Seconds between lines, at least.
LEAST = 5.0

#: Seconds between lines of a run that has no such time, on a terminal.
SELDOM = 30.0


class Progress:
    """Counts examples and failures, in the process with the terminal."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        """For a session that may fuzz for ``seconds``; 0 if it draws a number of examples."""
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
        records: list[dict[str, Any]] = getattr(report, ATTRIBUTE, [])
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
        """The words about the workers of ``--pallas-fleet``."""
        fleet = current(self.config).fleet
        if fleet is None:
            return ""
        words = f", {fleet.done} of {fleet.tasks} tasks, {fleet.threads} running at a time"
        for many, what in ((len(fleet.refused), "refused"), (len(fleet.lost), "lost")):
            words += f", {many} worker{'' if many == 1 else 's'} {what}" if many else ""
        return words

    def _seen(self, verbosity: int) -> bool:
        """Whether the output is a terminal, and the verbosity is high enough."""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        on_terminal = reporter is not None and bool(reporter.isatty)
        return on_terminal and self.config.get_verbosity() >= verbosity

    def _print(self, text: str) -> None:
        self.last = time.monotonic()
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        failures = f"{self.failures or 'no'} failure{'' if self.failures == 1 else 's'}"
        running = ", ".join(name.rpartition("::")[2] for name in self.now)
        reporter.ensure_newline()
        reporter.write_line(f"pallas: {text}, {failures}" + (f"; now {running}" * bool(running)))
