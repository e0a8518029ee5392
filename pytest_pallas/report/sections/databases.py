"""Report the database of examples, and once if it cannot be reached."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from pytest_pallas.session import PytestSession

#: Key of the data that an xdist worker sends to the controller at its end.
_OUTPUT = "pallas_lost_places"


class DatabaseReporter:
    """Reports the databases that could not be reached, also by workers."""

    def __init__(self, session: PytestSession) -> None:
        """Report for ``session``."""
        self.session = session
        self.reported: set[str] = set()

    def pytest_report_header(self) -> list[str]:
        """List the databases, and try to reach each server."""
        database = self.session.database
        if database is not None:
            list(database.fetch(b"reached"))  # what fails is remembered
        names = ", ".join(place.shown for place in self.session.options.database)
        self.reported = set(self.session.lost_places)
        return [f"pallas: examples in {names}", *map("pallas: warning: {}".format, self._lost())]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the lost databases of a worker to the controller."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = dict(self.session.lost_places)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the lost databases of a worker. A crashed worker sends nothing."""
        output: dict[str, Any] = getattr(node, "workeroutput", None) or {}
        for name, text in output.get(_OUTPUT, {}).items():
            self.session.lost_places.setdefault(name, text)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report databases that were lost after the header."""
        for line in self._lost(without=self.reported):
            terminalreporter.write_line(f"pallas: warning: {line}", yellow=True)

    def _lost(self, without: Collection[str] = ()) -> list[str]:
        lost = self.session.lost_places.items()
        return [f"database {name} {text}" for name, text in lost if name not in without]
