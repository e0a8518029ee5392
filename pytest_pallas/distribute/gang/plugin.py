"""The plugin of a host of a gang: its processes collect and run the tests, and host 0 reports.

``register_gang`` registers it at the start of a session. ``GangPlugin`` replaces the collection and
the run loop of pytest; ``GangProcesses`` starts the processes, has all of them run a test, and
starts them anew when one died.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.devices import accelerators
from pytest_pallas.backends.ending import longest
from pytest_pallas.backends.registry import Selection, parse
from pytest_pallas.compat.distributed import Place, detect
from pytest_pallas.decoding import DataError
from pytest_pallas.distribute.gang.hosts import (
    HostStore,
    Layout,
    LocalStore,
    RemoteStore,
    ServedStore,
    free_port,
    of_cluster,
    on_this_host,
)
from pytest_pallas.distribute.gang.merging import (
    Named,
    ended_report,
    failed_report,
    merged_reports,
)
from pytest_pallas.distribute.messages import (
    ENTRY,
    MODULE,
    STEPS,
    Collected,
    RunTest,
    Start,
    StartFailure,
    TestEnd,
)
from pytest_pallas.errors import GangError
from pytest_pallas.isolate.messages import StepNote, decoded, encoded, warning_of
from pytest_pallas.isolate.supervise import opening_of, preloads
from pytest_pallas.pytest_session import PytestSession, note_raised
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

#: The name of the registered plugin.
PLUGIN = "pallas-gang"

#: Options that a gang cannot use, by their name in messages, and the reasons.
_UNUSABLE = {
    "trace": "a timeline would run the kernel again in one process; run it without",
    "mutate": "a mutant that hangs or dies would take all processes with it; run it without",
}


def register_gang(state: PytestSession) -> None:
    """Register the plugin of this host.

    Raises:
      GangError: another option contradicts, there are too few devices, or the first host cannot
        be reached.
    """
    config, options = state.config, state.options
    flag = "--pallas-processes" if options.processes else "--pallas-distributed"
    _check_options(state, flag)
    state.delegates = True
    store: HostStore | None = None
    if options.processes:
        present = accelerators(os.environ)
        layout = on_this_host(options.processes, options.devices, present, options.backend)
    else:
        position = _position(state)
        layout = of_cluster(position, options.devices, os.environ)
        if layout.host:
            store = RemoteStore(position, options.join_timeout)
            _be_silent(state, layout)
        else:
            store = ServedStore(position, options.join_timeout)
    config.pluginmanager.register(GangPlugin(state, layout, store), PLUGIN)


def _check_options(state: PytestSession, flag: str) -> None:
    """Reject options that a gang cannot use."""
    config, options = state.config, state.options
    if options.processes and options.distributed:
        raise GangError("give either --pallas-processes or --pallas-distributed")
    if getattr(config.option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        raise GangError(
            f"{flag} runs each test in all processes at once: leave out -n of pytest-xdist"
        )
    if config.option.usepdb or config.option.trace:
        raise GangError(f"{flag}: a debugger needs a terminal, which several processes do not have")
    if options.isolate == "always":
        raise GangError(
            f"{flag}: its tests run in processes of their own; leave out --pallas-isolate=always"
        )
    for name, why in _UNUSABLE.items():
        if getattr(options, name) is not None:
            raise GangError(f"--pallas-{name.replace('_', '-')} with {flag}: {why}")


def _position(state: PytestSession) -> Place:
    """Return the place of this host among the hosts."""
    option = state.options.distributed
    assert option is not None
    if option.address:
        return Place(option.address, option.count, option.index)
    position = detect(state.options.join_timeout)
    if position is None:
        raise GangError(
            "--pallas-distributed=auto: JAX finds no TPU pod, Slurm, Open MPI or Kubernetes job "
            "here; give --pallas-distributed=I/N@HOST:PORT"
        )
    return position


def _be_silent(state: PytestSession, layout: Layout) -> None:
    """Let the first host report: print no tests, and write no files."""
    state.reports = False
    state.options = dataclasses.replace(state.options, results=None, html=None, trace=None)
    state.config.pluginmanager.unregister(name="terminalreporter")
    print(f"pallas: {layout.header}; process 0 reports", flush=True)  # noqa: T201


class GangPlugin:
    """Runs the session of a host: nothing is collected or run in this process."""

    def __init__(
        self, session: PytestSession, layout: Layout, store: HostStore | None = None
    ) -> None:
        """Create for a session; ``store`` is that of several hosts."""
        self.session, self.layout = session, layout
        self.gang = GangProcesses(session, layout, store or LocalStore())
        self.tests: Sequence[Named] = ()
        session.config.add_cleanup(self.gang.close)

    def pytest_report_header(self) -> str:
        """Return a line about the processes."""
        return f"pallas: {self.layout.header}"

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
        backends = [b for name in collected.backends for b in parse(name, state.families)]
        state.selection = Selection(tuple(backends), named=False, left_out={})
        for entry in collected.not_applicable:
            state.not_applicable.setdefault(entry.test, entry)
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
            reports = [failed_report(test, str(error)), ended_report(test)]
        else:
            for end in ends:
                if end.exit is not None:
                    pytest.exit(*end.exit)
            reports = merged_reports(session.config, test, ends)
            for warning in ends[0].warnings:
                hook.pytest_warning_recorded.call_historic(kwargs=warning_of(warning))
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


# The processes of a host.


#: Seconds until the processes that wait for one that died are killed, and for one that failed:
#: they may be about to fail as well.
DIED_SECONDS, FAILED_SECONDS = 1.0, 3.0

#: Seconds between looks at other hosts.
_LOOK = 0.25

#: Seconds after a process's own time limits until it is killed.
_GRACE = 15.0

#: How a process has started, or not.
_Started = Collected | StartFailure


class GangProcesses:
    """The processes of this host, and the agreement with other hosts about each test."""

    def __init__(self, session: PytestSession, layout: Layout, store: HostStore) -> None:
        """Create without starting a process."""
        self.layout = layout
        self.hosts: tuple[str, ...] = ()
        self._store = store
        self._host = socket.gethostname()
        self._opening = opening_of(session, chooses=True)
        self._join_seconds = session.options.join_timeout
        self._memory_bytes = int(session.options.worker_memory * 2**30)
        self._generation = -1
        self._number = 0
        self._timeout = 0.0
        self._pool: WorkerPool | None = None

    def start(self) -> Collected:
        """Start all processes, and let them collect.

        Returns:
          What process 0 has collected.

        Raises:
          GangError: a process did not start, or collected other tests.
        """
        limit = self._join_seconds
        if not self.hosts:  # the name of the host of each process
            names = [self._host] * len(self.layout.processes)
            self.hosts = tuple(map(str, self._shared(str, "hosts", names, limit)))
        self._generation += 1
        address = self._address()
        self._pool = WorkerPool(len(self.layout.processes))
        futures = {
            number: self._submit(number, self._start_message(number, address), 2 * limit + _GRACE)
            for number in self.layout.processes
        }
        wait(futures.values(), timeout=2 * limit)
        late = [number for number, future in futures.items() if not future.done()]
        if late:
            self.close_processes()
        starts = [self._started(n, future.result(), n in late) for n, future in futures.items()]
        every = self._shared(
            _Started, f"started/{self._generation}", starts, 2 * limit + 2 * _GRACE
        )
        failures = [start for start in every if isinstance(start, StartFailure)]
        if failures:
            self.close_processes()
            raise GangError(_start_failures(failures, self.layout.count))
        first = every[0] if every else None
        if not isinstance(first, Collected):
            raise GangError(self._absent(0, "sent no collection"))
        self._timeout = first.timeout
        return first

    def run(self, nodeid: str, raised: Mapping[str, tuple[str, str, bool]]) -> Sequence[TestEnd]:
        """Run a test in all processes; starts them if one has died before.

        Args:
          nodeid: its node id.
          raised: the kernels that raised in earlier tests, as in ``PytestSession``.

        Returns:
          The end of the test in each process of all hosts.

        Raises:
          GangError: the processes cannot start, or a host has gone.
        """
        if self._pool is None:
            self.start()
        self._number += 1
        key = f"{self._generation}/{self._number}"
        message = RunTest(nodeid=nodeid, key=key, raised=raised)
        futures = {
            number: self._submit(number, message, longest(self._timeout) + _GRACE)
            for number in self.layout.processes
        }
        ends = self._gathered(futures)
        every = self._shared(TestEnd, f"ends/{key}", ends, None)
        if any(end.died is not None or end.stopped or end.absent for end in every):
            self.close_processes()
        return every

    def close_processes(self) -> None:
        """Kill the processes of this host."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def close(self) -> None:
        """Kill the processes, and leave the other hosts."""
        self.close_processes()
        self._store.close()

    def _address(self) -> str:
        """Return the coordinator of the next generation: a free port of the first host."""
        key = f"address/{self._generation}"
        if self.layout.host == 0:
            self._store.put(key, f"{self.layout.address}:{free_port()}".encode())
        address = self._store.get(key, self._join_seconds)
        if address is None:
            raise GangError(
                f"{self.hosts[0]}, the first host, did not start within {self._join_seconds:g} s"
            )
        return address.decode(errors="replace")

    def _start_message(self, number: int, address: str) -> Start:
        return Start(
            position=Place(address, self.layout.count, number, self.layout.devices),
            opening=self._opening,
            seconds=self._join_seconds,
        )

    def _submit(self, number: int, message: Start | RunTest, timeout: float) -> Future[JobResult]:
        assert self._pool is not None
        environment = self.layout.environments[number - self.layout.first]
        setup = WorkerSetup(
            name=f"process {number}",
            job="the test",
            entry=ENTRY,
            environment=tuple(environment.items()),
            memory_bytes=self._memory_bytes,
            talks=True,
            # Drivers of accelerators start in processes of their own.
            preloads=(*preloads(), MODULE) if environment.get("JAX_PLATFORMS") == "cpu" else (),
        )
        return self._pool.submit(setup, encoded(message), timeout=timeout)

    def _started(self, number: int, result: JobResult, late: bool) -> Collected | StartFailure:
        """Return what a process has collected, or why it cannot be used."""
        if result.status == "done":
            collected = decoded(Collected, result.value)
            if not collected.problem:
                return collected
            reason, step = collected.problem, len(STEPS) - 1
        else:
            note = StepNote.decode(result.note)
            # Other steps are of kernels that run while tests are collected.
            known = note is None or note.step in STEPS
            step = STEPS.index("" if note is None else note.step if known else "collection")
            reason = result.fate or result.message
            if late:
                reason = f"did not start within {2 * self._join_seconds:g} s"
            if note is not None:
                reason += f" (step: {note.step})"
            if not late and result.output.strip():
                reason += f"\n{result.output.strip()}"
        return StartFailure(process=number, host=self._host, reason=reason, step=step)

    def _gathered(self, futures: Mapping[int, Future[JobResult]]) -> list[TestEnd]:
        """Wait for the processes of this host, and kill those that can only wait for another."""
        ends: dict[int, TestEnd] = {}
        until: float | None = None
        while pending := {n: future for n, future in futures.items() if n not in ends}:
            if until is not None and time.monotonic() > until:
                self.close_processes()
                wait(pending.values())
                ends |= {n: self._end(n, f.result(), stopped=True) for n, f in pending.items()}
                break
            wait(pending.values(), timeout=_LOOK, return_when=FIRST_COMPLETED)
            ends |= {n: self._end(n, f.result()) for n, f in pending.items() if f.done()}
            if until is None and (grace := self._patience(ends.values())) is not None:
                until = time.monotonic() + grace
        return [ends[number] for number in futures]

    def _patience(self, ends: Collection[TestEnd]) -> float | None:
        """Return the seconds that processes of this host may still take; None for no limit."""
        lost = f"lost/{self._generation}"
        graces = [grace for end in ends if (grace := _grace(end)) is not None]
        if self.layout.hosts > 1:
            if graces:
                self._store.put(f"{lost}/{self.layout.host}", b"")
            elif self._store.keys(f"{lost}/"):
                graces = [DIED_SECONDS]
        return min(graces, default=None)

    def _end(self, number: int, result: JobResult, *, stopped: bool = False) -> TestEnd:
        """Return the end of a test in a process of this host."""
        if not stopped and result.status == "done":
            return decoded(TestEnd, result.value)
        return TestEnd(process=number, host=self._host, stopped=stopped, died=result)

    def _shared(self, kind: Any, key: str, mine: Sequence[Any], seconds: float | None) -> list[Any]:
        """Give a list to all hosts; returns their lists, one after the other.

        Args:
          kind: the type of an element.
          key: a new one each time.
          mine: the list of this host.
          seconds: time limit; None to wait as long as the other hosts live.

        Raises:
          GangError: a host did not answer, or has gone.
        """
        self._store.put(f"{key}/{self.layout.host}", encoded(mine))
        until = None if seconds is None else time.monotonic() + seconds
        lists: list[Any] = []
        for host in range(self.layout.hosts):
            if host == self.layout.host:
                lists += mine
                continue
            while (body := self._store.get(f"{key}/{host}", 1.0)) is None:
                if until is not None and time.monotonic() > until:
                    raise GangError(self._absent(host, f"did not answer within {seconds:g} s"))
                if until is None and host not in self._store.live():
                    raise GangError(self._absent(host, "has gone: nothing was heard of it"))
            try:
                lists += decoded(list[kind], body)
            except DataError as error:
                raise GangError(self._absent(host, f"sent what cannot be read: {error}")) from None
        return lists

    def _absent(self, host: int, what: str) -> str:
        name = f" ({self.hosts[host]})" if self.hosts else ""
        return (
            f"host {host} of {self.layout.hosts}{name} {what}. Start pytest with the same "
            "arguments on every host"
        )


def _grace(end: TestEnd) -> float | None:
    """Return the seconds that others may take after this end in one process; None for no limit."""
    if end.died is not None:
        return DIED_SECONDS
    failed = end.absent or any(report["outcome"] == "failed" for report in end.reports)
    return FAILED_SECONDS if failed else None


def _start_failures(failures: Sequence[StartFailure], count: int) -> str:
    """Return the message for processes that cannot be used.

    Those that came less far than others are the cause: the others wait for them.
    """
    first = min(failure.step for failure in failures)
    causes = [failure for failure in failures if failure.step == first]
    lines = [f"process {failure.process} ({failure.host}): {failure.reason}" for failure in causes]
    if len(causes) < len(failures):
        rest = ", ".join(str(failure.process) for failure in failures if failure.step != first)
        lines.append(f"waiting for it: process {rest}")
    return f"the {count} processes cannot run the tests:\n" + "\n".join(lines)
