"""Results of tests that have not ended, which outlive this process in the journal of the run.

They are those of parts; and with mutants also of tests that ended before an earlier one, and are
not reported yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_pallas.decoding import DataError
from pytest_pallas.fleet.ledger import Parts
from pytest_pallas.fleet.messages import TestResult, from_plain, to_plain
from pytest_pallas.items.parts import result_of
from pytest_pallas.options.values import place_of
from pytest_pallas.report.runs.keeping import PLUGIN, RunKeeper


class KeptResults:
    """The results of a run that were kept, also by an earlier part of the run."""

    def __init__(self, config: pytest.Config) -> None:
        """Without ``--pallas-results`` and ``--pallas-resume``, none are kept.

        Raises:
          pytest.UsageError: those of an earlier part of the run are not what a fleet writes.
        """
        self._keeper: RunKeeper | None = config.pluginmanager.get_plugin(PLUGIN)
        resumed = None if self._keeper is None else self._keeper.resumed
        self._resumed: dict[str, list[TestResult]] = {}
        for nodeid, results in ({} if resumed is None else resumed.parts).items():
            try:
                self._resumed[nodeid] = [from_plain(TestResult, each) for each in results]
            except DataError as error:
                raise pytest.UsageError(
                    f"{place_of(config, 'resume')}: {resumed and resumed.path}: the parts of "
                    f"{nodeid} are not those of a fleet: {error}. Start anew without "
                    "--pallas-resume"
                ) from None

    def keep(self, result: TestResult) -> None:
        """Keep a result."""
        if self._keeper is not None:
            self._keeper.keep_part(result.nodeid, to_plain(result))

    def add_to(self, parts: Parts) -> Parts:
        """Begin a test with the parts of it that are done."""
        for result in self._resumed.get(parts.nodeid, ()):
            found = result_of(result.reports)
            if found is not None:
                parts.results.append(result)
                parts.found.append(found)
                parts.spent += sum(report.get("duration", 0.0) for report in result.reports)
        return parts

    def whole(self) -> Iterator[TestResult]:
        """The results of tests that are done."""
        for results in self._resumed.values():
            yield from (each for each in results if result_of(each.reports) is None)
