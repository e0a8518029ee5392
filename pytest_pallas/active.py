"""The hooks of a session that tests kernels.

``plugin`` registers ``KernelTests`` with the first option, mark, fixture or suite of the plugin in
a session. This module does not import jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import DeviceError, OptionError, first_line
from pytest_pallas.backends import processes
from pytest_pallas.budget import limited
from pytest_pallas.compat.testing import worker_count
from pytest_pallas.errors import GangError
from pytest_pallas.fixtures import reseed
from pytest_pallas.options import any_given
from pytest_pallas.pytest_session import (
    DEVICES,
    DONE,
    OUTPUT,
    PROBLEM,
    REFUSAL,
    SHARD,
    STATUS,
    look_for_named_backends,
    start,
)

if TYPE_CHECKING:
    from pytest_pallas.distribute.resume import RunKeeper
    from pytest_pallas.isolate.isolator import Isolator

#: New objects after which the garbage collector runs.
_NEW_OBJECTS = 20_000


@contextlib.contextmanager
def _stopping_pytest() -> Generator[None]:
    """Make a ``UsageError`` of wrong options and missing devices, which stops pytest."""
    try:
        yield
    except (OptionError, DeviceError, GangError) as error:
        raise pytest.UsageError(str(error)) from None


@contextlib.contextmanager
def _collecting_seldom() -> Generator[None]:
    """Let Python's garbage collector run after ten times as many new objects as usual.

    Traces are kept, and made of very many objects, of which a round finds hardly any to free.
    """
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _NEW_OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


class KernelTests:
    """The plugin of a session that tests kernels."""

    def __init__(self, config: pytest.Config) -> None:
        """Start the session.

        Raises:
          pytest.UsageError: an option, ini value or name is wrong.
        """
        self.config, self.session = config, start(config)
        self.in_worker = self.session.in_worker  # this process runs isolated tests for another

    def pytest_configure(self) -> None:
        """Set options, devices and backends, and register the plugins of features."""
        session, register = self.session, self.config.pluginmanager.register
        options = session.options
        budget = contextlib.ExitStack()
        budget.enter_context(limited(options.max_bytes))  # until the session ends
        budget.enter_context(_collecting_seldom())
        self.config.add_cleanup(budget.close)
        gang = not self.in_worker and (options.processes or options.distributed)
        with _stopping_pytest():
            self._set_devices()
            if gang:
                from pytest_pallas.distribute.gang.plugin import register_gang

                register_gang(session)
            isolator = None if self.in_worker or gang else self._isolator()
            self._look_for_backends()
            self._check_files()
        keeper = self._keeper_of_results()
        if options.suite:
            from pytest_pallas.run.collection import add_suite

            add_suite(self.config)
        if options.database:
            from pytest_pallas.database import DatabaseReporter

            reporter = DatabaseReporter(
                options.database, lambda: session.database, session.lost_places
            )
            register(reporter, "pallas-database-reporter")
        if options.mutate is not None:
            from pytest_pallas.mutate.own_tests import register_mutants

            with _stopping_pytest():
                register_mutants(session, reseed)
        if isolator is not None:
            from pytest_pallas.isolate.isolator import PLUGIN, HardwareTests

            register(isolator, PLUGIN)
            if isolator.owns_devices:
                register(HardwareTests(isolator), f"{PLUGIN}-hardware")
        if not hasattr(self.config, "workerinput") and not self.in_worker and session.reports:
            self._register_reporters(keeper)

    def _look_for_backends(self) -> None:
        """Look for named backends; a pytest-xdist worker leaves the error to the controller."""
        try:
            look_for_named_backends(self.session)
        except (OptionError, DeviceError) as error:
            if not hasattr(self.config, "workerinput"):
                raise
            self.session.refusal = str(error)

    def _isolator(self) -> Isolator:
        """Make the plugin that isolates tests. Its worker owns the devices of hardware, if any."""
        from pytest_pallas.isolate.isolator import Isolator
        from pytest_pallas.isolate.policy import may_use_hardware, separates_hardware

        session, isolator = self.session, Isolator(self.session)
        if may_use_hardware(session):
            if worker_count(self.config):
                from pytest_pallas.workers.forks import shared

                session.delegates, session.elsewhere = True, session.devices_told
                sharing = contextlib.ExitStack()
                sharing.enter_context(shared())
                self.config.add_cleanup(sharing.close)
            elif separates_hardware(session):
                isolator.own_devices()
        return isolator

    def _set_devices(self) -> None:
        """Set the number of simulated devices, and which accelerator each worker sees.

        Only the controller of a run with options of the plugin gives accelerators to workers.

        Raises:
          DeviceError: JAX has started, or there are too few accelerators for a named backend.
        """
        from pytest_pallas.backends.devices import (
            accelerators,
            announce,
            pinning,
            simulate,
            withdraw,
        )

        session = self.session
        if processes.gang() is None:  # otherwise its host has set them
            explicit = "devices" in session.options.explicit
            devices = simulate(session.options.devices, os.environ, explicit=explicit)
            session.options = dataclasses.replace(session.options, devices=devices)
        workers = worker_count(self.config)
        if workers < 2 or not any_given(self.config):
            return
        backends = session.options.backend
        session.pinning = pinning(accelerators(os.environ), workers, backends, os.environ)
        if session.pinning is not None:
            announce(session.pinning, os.environ)
            self.config.add_cleanup(functools.partial(withdraw, os.environ))

    def _check_files(self) -> None:
        """Read and check the files of the options, so that a wrong one stops pytest now.

        Raises:
          OptionError: a file is damaged or missing, or cannot be written.
        """
        session = self.session
        if session.options.writes:
            from pytest_pallas.report.files import check_output_files

            check_output_files(session)
        if session.options.trace is not None:
            from pytest_pallas.report.files import check_trace

            check_trace(session)
        if session.goldens is not None:
            session.goldens.ready()
        _ = session.replayed, session.costs
        if session.options.dump is not None:
            folder = self.config.invocation_params.dir / session.options.dump
            session.options = dataclasses.replace(session.options, dump=folder)

    def _keeper_of_results(self) -> RunKeeper | None:
        """Find what is done of a run that is taken up, and register what keeps results.

        Raises:
          pytest.UsageError: the run cannot be taken up.
        """
        session, options = self.session, self.session.options
        if self.in_worker or (options.results is None and options.resume is None):
            return None
        from pytest_pallas.decoding import decode
        from pytest_pallas.distribute.resume import PLUGIN, RunKeeper, load_done_tests, resumed_run
        from pytest_pallas.pytest_session import Done, done_of

        worker: dict[str, Any] | None = getattr(self.config, "workerinput", None)  # pytest-xdist's
        if worker is not None:
            if DONE in worker:
                load_done_tests(session, decode(Done, worker[DONE]))
            return None
        with _stopping_pytest():
            resumed = None if options.resume is None else resumed_run(session)
        if resumed is not None:
            load_done_tests(session, done_of(resumed))
        keeper = RunKeeper(session, resumed)
        self.config.pluginmanager.register(keeper, PLUGIN)
        return keeper

    def _register_reporters(self, keeper: RunKeeper | None) -> None:
        """Register what reports in this process, and the fleet that it sends tests to."""
        from pytest_pallas.report.reporter import Progress, Reporter

        session, register = self.session, self.config.pluginmanager.register
        register(Reporter(session, keeper), "pallas-reporter")
        if session.options.trace is not None:
            from pytest_pallas.report.files import TraceReporter

            register(TraceReporter(session), "pallas-trace-reporter")
        if session.options.fleet is not None:
            from pytest_pallas.distribute.fleet.controller import start_fleet

            with _stopping_pytest():
                start_fleet(session)
        register(Progress(self.config, session.options.fuzz_time), "pallas-progress")

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect the specs of a file that belongs to a suite."""
        if file_path.suffix != ".py" or not self.session.options.suite:
            return None
        from pytest_pallas.run.collection import collect_file

        return collect_file(file_path, parent)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Report once that a file of a suite cannot be imported, which pytest collects as well."""
        report = yield
        if report.failed and self.session.options.suite:
            from pytest_pallas.run.collection import reported_once

            reported_once(collector, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Add the specs of the hook ``pytest_pallas_specs``."""
        suite = self.session.options.suite
        if suite and not session.testsfailed:
            from pytest_pallas.run.collection import require_specs

            require_specs(config)
        hooked = config.hook.pytest_pallas_specs(config=config)
        if any(hooked):
            from pytest_pallas.run.collection import collect_hooked

            collect_hooked(session, items, [spec for specs in hooked for spec in specs])
        if suite and not session.testsfailed:
            from pytest_pallas.run.collection import require_checks

            require_checks(config, items)
        self.session.collected = len(items)
        if not self.session.options.replay:
            return
        from pytest_pallas.distribute.shards import keep_named, keep_replayed

        keep_named(config, items)  # the command of a failure may select by -k
        if (replayed := self.session.replayed) is not None and not session.testsfailed:
            with self._refusing_tests(items):
                keep_replayed(config, items, replayed.example)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remove not applicable checks that the run does not select; refuse an unused replay."""
        if self.session.not_applicable:
            from pytest_pallas.run.nodes import keep_selected

            narrowed = self.session.collected > len(session.items)
            keep_selected(session.config, session.items, narrowed=narrowed)
        if self.session.options.shard is not None:
            from pytest_pallas.distribute.shards import keep_shard

            keep_shard(session.config, session.items)
        if self.session.done:
            from pytest_pallas.distribute.resume import leave_out_done

            leave_out_done(self.session, session.items)
        elsewhere = self.in_worker or self.session.remote_tests is not None
        refused = elsewhere or session.testsfailed or self.session.refusal
        if self.session.options.replay and not refused:
            from pytest_pallas.distribute.shards import require_replayed

            with self._refusing_tests(session.items):
                require_replayed(session.config, session.items)

    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Collect nothing in a pytest-xdist worker whose backends are not there."""
        if not self.session.refusal:
            return None
        session.items, session.testscollected = [], 0
        session.config.hook.pytest_collection_finish(session=session)
        return True

    @contextlib.contextmanager
    def _refusing_tests(self, items: list[pytest.Item]) -> Generator[None]:
        """Leave a usage error of a pytest-xdist worker to the controller, which loses others."""
        try:
            yield
        except pytest.UsageError as error:
            if not hasattr(self.config, "workerinput"):
                raise
            self.session.refusal, items[:] = str(error), []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        """Record the running test, and start the compilations of the next one."""
        self.session.item = item
        processes.begin_scope(item.nodeid)
        self.session.results.clear()
        for compiling in () if self.session.elsewhere else (item, nextitem):
            if getattr(getattr(compiling, "backend", None), "kind", None) == "compiling":
                from pytest_pallas.run.item import begin

                begin(compiling)
        try:
            return (yield)
        finally:
            self.session.item = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Reject wrong marks, and reset the random generators."""
        if PROBLEM in item.stash:
            pytest.fail(item.stash[PROBLEM], pytrace=False)
        reseed(self.session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the records of a test on its report."""
        report = yield
        if call.excinfo is not None or report.when == "teardown":
            processes.end_scope(_problem(call.excinfo))
        if call.excinfo is not None and self.in_worker:
            from pytest_pallas.backends import statuses

            statuses.note(call.excinfo.value)
        if self.session.results or hasattr(item, "result"):
            from pytest_pallas.report.collect import attach

            attach(self.session, item, report, call.excinfo)
        if self.session.options.trace is not None:
            from pytest_pallas.report.files import attach_timeline

            attach_timeline(self.session, report, call.excinfo)
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count tests that the plugin skipped under their own status."""
        status = getattr(report, STATUS, "")
        return (status, "-", status.upper()) if status and report.skipped else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the checks of a kernel together, because they share draws, traces and runs."""
        if not self.session.options.suite:
            return None
        from pytest_pallas.distribute.shards import scheduler_for

        return scheduler_for(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what an xdist worker knows to the controller; set digests for the results."""
        state = self.session
        output = getattr(session.config, "workeroutput", None)
        if output is None and state.options.results is not None:
            from pytest_pallas.distribute.shards import set_digests

            set_digests(state)
        elif output is not None:
            from pytest_pallas.decoding import jsonable

            entries = list(state.not_applicable.values())
            output[OUTPUT] = jsonable(entries)
            output[SHARD] = (state.shard_line, state.empty_shard)
            output[REFUSAL] = state.refusal
            backends = state.selection.backends if "selection" in vars(state) else ()
            hardware = [backend.name for backend in backends if backend.kind == "hardware"]
            output[DEVICES] = {name: list(state.devices(name).kinds) for name in hardware}


def _problem(excinfo: pytest.ExceptionInfo[BaseException] | None) -> str:
    """Say what went wrong in a test, for other processes; "" for a skipped test."""
    if excinfo is None or isinstance(excinfo.value, pytest.skip.Exception):
        return ""
    return f"{excinfo.typename}: {first_line(excinfo.value)}"
