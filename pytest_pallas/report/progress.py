"""Lines that say how far ``--pallas-fuzz-time`` is: nothing else is seen for minutes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_pallas.report.reporter import ATTRIBUTE

#: A line at every such share of the time.
SHARE = 0.1

#: Seconds between lines, at least.
LEAST = 5.0


class Progress:
    """Counts examples and failures as they are reported, in the process that has a terminal."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        """For a session that may take ``seconds``."""
        self.config = config
        self.seconds = seconds
        self.started = self.last = time.monotonic()
        self.examples = 0
        self.kernels: set[str] = set()
        self.failures = 0

    def pytest_runtestloop(self) -> None:
        """Start the clock: collection is not fuzzing."""
        self.started = self.last = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what a report holds."""
        records: list[dict[str, Any]] = getattr(report, ATTRIBUTE, [])
        for record in records:
            self.examples += record["examples"]
            self.kernels.add(record["kernel"])
            self.failures += record["outcome"] == "failed"
        if records:
            self.pulse(0)

    def pulse(self, examples: int) -> None:
        """Print a line if it is time for one; ``examples`` are not reported yet."""
        now = time.monotonic()
        if now - self.last < max(LEAST, SHARE * self.seconds):
            return
        self.last = now
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        failures = f"{self.failures or 'no'} failure{'' if self.failures == 1 else 's'}"
        reporter.ensure_newline()
        reporter.write_line(
            f"pallas: {now - self.started:.0f} of {self.seconds:.0f} s, "
            f"{self.examples + examples:,} examples, {len(self.kernels)} kernels done or begun, "
            f"{failures}"
        )
