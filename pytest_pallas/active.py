"""The hooks of a session that tests kernels, without logic.

``plugin`` registers this module with the first option, mark, fixture or suite of the plugin in a
session. It does not import jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
    DONE,
    OUTPUT,
    PROBLEM,
    SESSION,
    SHARD,
    STATUS,
    PytestSession,
    current,
    look_for_named_backends,
    start,
)

if TYPE_CHECKING:
    from pytest_pallas.distribute.resume import RunKeeper


def pytest_configure(config: pytest.Config) -> None:
    """Set options, devices and backends, and register the plugins for reports and isolation."""
    from pytest_pallas.backends.devices import simulate

    state = start(config)
    budget = contextlib.ExitStack()
    budget.enter_context(limited(state.options.max_bytes))  # until the session ends
    config.add_cleanup(budget.close)
    try:
        gang = not state.in_worker and (state.options.processes or state.options.distributed)
        if processes.gang() is None:  # otherwise its host has set them
            explicit = "devices" in state.options.explicit
            devices = simulate(state.options.devices, os.environ, explicit=explicit)
            state.options = dataclasses.replace(state.options, devices=devices)
        _settle_workers(state)
        if gang:
            from pytest_pallas.distribute.gang.plugin import register_gang

            register_gang(state)
        look_for_named_backends(state)
        if state.options.results is not None or state.options.html is not None:
            from pytest_pallas.report.files import prepare_files

            prepare_files(state)
        if state.options.trace is not None:
            from pytest_pallas.report.traces import prepare_trace

            prepare_trace(state)
        if state.goldens is not None:
            state.goldens.ready()
        state.replayed  # noqa: B018 - read now: a damaged file must stop pytest before it collects
        state.costs  # noqa: B018 - read now: a missing file must stop pytest before it collects
        if state.options.dump is not None:
            folder = config.invocation_params.dir / state.options.dump
            state.options = dataclasses.replace(state.options, dump=folder)
    except (OptionError, DeviceError, GangError) as error:
        raise pytest.UsageError(str(error)) from None
    kept = _settle_results(state)
    if state.options.suite:
        from pytest_pallas.run.collection import add_suite

        add_suite(config)
    if state.options.database:
        from pytest_pallas.database import DatabaseReporter

        names = ", ".join(place.shown for place in state.options.database)
        databases = DatabaseReporter(names, lambda: state.database, state.lost_places)
        config.pluginmanager.register(databases, "pallas-database-reporter")
    if state.options.mutate is not None:
        from pytest_pallas.mutate.own_tests import PLUGIN as MUTANTS
        from pytest_pallas.mutate.own_tests import TestMutantRunner, mutants_instead
        from pytest_pallas.mutate.runner import earlier_run

        try:
            # a wrong name or file must stop pytest before collection
            if "mutate_operators" in state.options.explicit:
                _ = state.operators  # imports JAX
            earlier = earlier_run(config)
        except OptionError as error:
            raise pytest.UsageError(str(error)) from None
        state.killed_earlier = earlier.killed
        state.killed |= earlier.killed
        state.marked |= earlier.marked
        config.pluginmanager.register(TestMutantRunner(state, reseed), MUTANTS)
        state.replace_items = mutants_instead
    isolated = state.in_worker  # this process is for those
    if not isolated and not gang:
        from pytest_pallas.isolate.isolator import PLUGIN, Isolator

        config.pluginmanager.register(Isolator(state), PLUGIN)
    if not hasattr(config, "workerinput") and not isolated and state.reports:
        from pytest_pallas.report.reporter import Reporter

        config.pluginmanager.register(Reporter(state, kept), "pallas-reporter")
        if state.options.trace is not None:
            from pytest_pallas.report.traces import TraceReporter

            config.pluginmanager.register(TraceReporter(state), "pallas-trace-reporter")
        if state.options.fleet is not None:
            from pytest_pallas.distribute.fleet.controller import start_fleet

            try:
                start_fleet(state)
            except OptionError as error:
                raise pytest.UsageError(str(error)) from None
        from pytest_pallas.report.reporter import Progress

        progress = Progress(config, state.options.fuzz_time)
        config.pluginmanager.register(progress, "pallas-progress")


def _settle_results(state: PytestSession) -> RunKeeper | None:
    """Find what is done of a run that is taken up, and register what keeps results as they come.

    Raises:
      pytest.UsageError: the run cannot be taken up.
    """
    config = state.config
    if state.in_worker or (state.options.results is None and state.options.resume is None):
        return None
    from pytest_pallas.distribute.resume import load_done_tests
    from pytest_pallas.pytest_session import done_from_plain, done_of

    given: dict[str, Any] | None = getattr(config, "workerinput", None)  # of pytest-xdist
    if given is not None:
        if DONE in given:
            load_done_tests(state, done_from_plain(given[DONE]))
        return None
    from pytest_pallas.distribute.resume import PLUGIN, RunKeeper, resumed_run

    try:
        resumed = None if state.options.resume is None else resumed_run(state)
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None
    if resumed is not None:
        load_done_tests(state, done_of(resumed))
    kept = RunKeeper(state, resumed)
    config.pluginmanager.register(kept, PLUGIN)
    return kept


def _settle_workers(state: PytestSession) -> None:
    """In the controller of a run with options of the plugin, give each worker an accelerator.

    Raises:
      DeviceError: there are too few for a named backend.
    """
    workers = worker_count(state.config)
    if workers < 2 or not any_given(state.config):
        return
    from pytest_pallas.backends.devices import accelerators, announce, pinning, withdraw

    backends = state.options.backend
    state.pinning = pinning(accelerators(os.environ), workers, backends, os.environ)
    if state.pinning is not None:
        announce(state.pinning, os.environ)
        state.config.add_cleanup(functools.partial(withdraw, os.environ))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the specs of a file that belongs to a suite."""
    if file_path.suffix != ".py" or not current(parent.config).options.suite:
        return None
    from pytest_pallas.run.collection import collect_file

    return collect_file(file_path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report once that a file of a suite cannot be imported, which pytest collects as well."""
    report = yield
    if report.failed and current(collector.config).options.suite:
        from pytest_pallas.run.collection import reported_once

        reported_once(collector, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the specs of the hook ``pytest_pallas_specs``."""
    if current(config).options.suite and not session.testsfailed:
        from pytest_pallas.run.collection import require_specs

        require_specs(config)
    extra = config.hook.pytest_pallas_specs(config=config)
    if any(extra):
        from pytest_pallas.run.collection import collect_hooked

        collect_hooked(session, items, [spec for specs in extra for spec in specs])
    if current(config).options.suite and not session.testsfailed:
        from pytest_pallas.run.collection import require_checks

        require_checks(config, items)
    current(config).collected = len(items)
    if (replayed := current(config).replayed) is not None and not session.testsfailed:
        from pytest_pallas.distribute.shards import keep_replayed

        keep_replayed(config, items, replayed.example)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remove not applicable checks that the run does not select."""
    if current(session.config).not_applicable:
        from pytest_pallas.run.applicability import keep_selected

        narrowed = current(session.config).collected > len(session.items)
        keep_selected(session.config, session.items, narrowed=narrowed)
    if current(session.config).options.shard is not None:
        from pytest_pallas.distribute.shards import keep_shard

        keep_shard(session.config, session.items)
    if current(session.config).done:
        from pytest_pallas.distribute.resume import leave_out_done

        leave_out_done(current(session.config), session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """Record the running test, and start the compilations of the next one."""
    state = current(item.config)
    state.item = item
    processes.begin_scope(item.nodeid)
    state.results.clear()
    for each in (item, nextitem):
        if getattr(getattr(each, "backend", None), "kind", None) == "compiling":
            from pytest_pallas.run import item as precompile

            precompile.begin(each)
    try:
        return (yield)
    finally:
        state.item = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reject wrong marks, and reset the random generators."""
    if PROBLEM in item.stash:
        pytest.fail(item.stash[PROBLEM], pytrace=False)
    reseed(current(item.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the records of a test on its report."""
    report = yield
    if call.excinfo is not None or report.when == "teardown":
        processes.end_scope(_problem(call.excinfo))
    state = current(item.config)
    if state.results or hasattr(item, "result"):
        from pytest_pallas.report.collect import attach

        attach(state, item, report, call.excinfo)
    if state.options.trace is not None:
        from pytest_pallas.report.traces import attach as attach_trace

        attach_trace(state, report, call.excinfo)
    return report


def _problem(excinfo: pytest.ExceptionInfo[BaseException] | None) -> str:
    """What went wrong in a test, for the other processes of the program; "" for a skipped test."""
    if excinfo is None or isinstance(excinfo.value, pytest.skip.Exception):
        return ""
    return f"{excinfo.typename}: {first_line(excinfo.value)}"


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count tests that the plugin skipped under their own status."""
    status = getattr(report, STATUS, "")
    return (status, "-", status.upper()) if status and report.skipped else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the checks of a kernel together, because they share draws, traces and runs."""
    if not current(config).options.suite:
        return None
    from pytest_pallas.distribute.shards import scheduler_for

    return scheduler_for(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what an xdist worker knows to the controller; digest files for results without tests."""
    if SESSION not in session.config.stash:
        return
    state = current(session.config)
    output = getattr(session.config, "workeroutput", None)
    if output is None and state.options.results is not None:
        from pytest_pallas.distribute.shards import set_digests

        set_digests(state)
    elif output is not None:
        from pytest_pallas.record import plain_not_applicable

        entries = state.not_applicable.values()
        output[OUTPUT] = [plain_not_applicable(entry) for entry in entries]
        output[SHARD] = (state.shard_line, state.empty_shard)
