"""The plugin of a host of a gang: its processes collect and run the tests, and host 0 reports."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends import Selection
from pytest_pallas.backends.registry import parse
from pytest_pallas.errors import GangError
from pytest_pallas.gang.hosts import HostStore, LocalStore
from pytest_pallas.gang.layout import Layout
from pytest_pallas.gang.messages import Collected
from pytest_pallas.gang.reports import Named, ended_report, merged_reports
from pytest_pallas.gang.supervisor import Gang, GangSettings
from pytest_pallas.isolation.requests import opening_of
from pytest_pallas.session import PytestSession, note_raised

#: The name of the registered plugin.
PLUGIN = "pallas-gang"


class GangPlugin:
    """Runs the session of a host: nothing is collected or run in this process."""

    def __init__(
        self, session: PytestSession, layout: Layout, store: HostStore | None = None
    ) -> None:
        """Create for a session; ``store`` is that of several hosts."""
        self.session, self.layout = session, layout
        options = session.options
        settings = GangSettings(
            opening=opening_of(session, chooses=True),
            address=layout.address,
            host=socket.gethostname(),
            join_seconds=options.join_timeout,
            memory_bytes=int(options.worker_memory * 2**30),
        )
        self.gang = Gang(layout, store or LocalStore(), settings)
        self.tests: Sequence[Named] = ()
        session.config.add_cleanup(self.gang.close)

    def pytest_report_header(self) -> str:
        """The processes."""
        return f"pallas: {self.layout.words}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Let the processes collect, and use what process 0 has found."""
        if session.config.option.collectonly:
            return None
        try:
            collected = self.gang.start()
            self._use(session, collected)
        except (GangError, OptionError) as error:
            raise pytest.UsageError(str(error)) from None
        return True

    def _use(self, session: pytest.Session, collected: Collected) -> None:
        hook, state = session.config.hook, self.session
        for data in collected.reports:
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            hook.pytest_collectreport(report=report)
        self.tests = [test for test in collected.tests if test[0] not in state.done]
        state.remote_tests = [nodeid for nodeid, _ in self.tests]
        session.testscollected = len(self.tests)
        backends = [each for name in collected.backends for each in parse(name, state.families)]
        state.selection = Selection(tuple(backends), named=False, left_out={})
        for each in collected.not_applicable:
            state.not_applicable.setdefault(each.test, each)
        state.shard_line, state.empty_shard = collected.shard
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and session.config.get_verbosity() >= 0:
            tests = "1 test" if len(self.tests) == 1 else f"{len(self.tests)} tests"
            if terminal.isatty():
                terminal.rewrite("")  # "collecting ..."
            shard = f", {state.shard_line}" if state.shard_line else ""
            terminal.write_line(f"{self.gang.layout.count} processes collected {tests}{shard}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record kernels that raised: their other tests do not run."""
        note_raised(self.session, report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run each test in all processes."""
        option = session.config.option
        if option.collectonly:
            return None
        if session.testsfailed and not option.continue_on_collection_errors:
            errors = "error" if session.testsfailed == 1 else "errors"
            raise session.Interrupted(f"{session.testsfailed} {errors} during collection")
        for test in self.tests:
            self._run(session, test)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def _run(self, session: pytest.Session, test: Named) -> None:
        hook = session.config.hook
        nodeid, location = test
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        try:
            ends = self.gang.run(nodeid, self.session.raised)
        except GangError as error:
            session.shouldstop = "the processes of the gang cannot go on"
            reports = [_report(test, str(error)), ended_report(test)]
        else:

            def load(data: Mapping[str, Any]) -> pytest.TestReport:
                return hook.pytest_report_from_serializable(config=session.config, data=data)

            for end in ends:
                if end.reply is not None and end.reply.exit is not None:
                    pytest.exit(*end.reply.exit)
            reports = merged_reports(test, ends, load)
            for end in ends:
                if end.process == 0 and end.reply is not None:
                    for warning in end.reply.warnings:
                        hook.pytest_warning_recorded.call_historic(kwargs=dict(warning))
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


def _report(test: Named, text: str) -> pytest.TestReport:
    """The report of a test that could not run."""
    return pytest.TestReport(
        nodeid=test[0],
        location=test[1],
        keywords={},
        outcome="failed",
        longrepr=text,
        when="call",
    )
