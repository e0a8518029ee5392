"""The controller of a fleet: the run loop that sends tests to workers and reports their results.

``start_fleet`` registers it. ``FleetRunner._run`` is the loop: it looks at the workers, sends tasks
of the ``Ledger``, and takes each answer to the ``ResultReplayer``. At the end of the module: what
workers must know of a run, and how long each test may take.
"""

from __future__ import annotations

import os
import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.testing import say
from pytest_pallas.decoding import DataError
from pytest_pallas.distribute.fleet import worker
from pytest_pallas.distribute.fleet.cluster import CLOSED, ClusterLostError, DaskCluster, Workers
from pytest_pallas.distribute.fleet.ledger import (
    KeptResults,
    KernelGroup,
    Ledger,
    Parts,
    ResultReplayer,
    Sent,
)
from pytest_pallas.distribute.messages import (
    Answer,
    FleetTask,
    RunSetup,
    TestResult,
)
from pytest_pallas.distribute.parts import divisible, keep_examples
from pytest_pallas.distribute.shards import scope_of
from pytest_pallas.isolate.isolator import isolator_of
from pytest_pallas.isolate.messages import WorkerRequest, decoded, encoded, project_of
from pytest_pallas.isolate.supervise import opening_of
from pytest_pallas.mutate.item import MutantsItem
from pytest_pallas.options import place_of
from pytest_pallas.pytest_session import FleetFacts, PytestSession, current
from pytest_pallas.report.reporter import Progress, Reporter
from pytest_pallas.run.collection import locate
from pytest_pallas.run.item import weights

#: The name of the registered plugin.
PLUGIN = "pallas-fleet"

#: Seconds between looks at up to a hundred workers: the answer lists them all.
POLL_SECONDS = 1.0

#: Seconds without a sign of life after which a worker's tasks go to another one, too. Dask waits
#: five minutes.
SILENT_SECONDS = 30.0

#: Time limit in seconds for the first worker to take part, and for another one after the last one
#: was lost.
WAIT_SECONDS = 60.0

#: The variables that set ``SILENT_SECONDS`` and ``WAIT_SECONDS``.
SILENT_VARIABLE = "PYTEST_PALLAS_FLEET_SILENT_SECONDS"
WAIT_VARIABLE = "PYTEST_PALLAS_FLEET_WAIT_SECONDS"

#: Options of pytest and its plugins that exclude a fleet: name, spelling, reason.
_EXCLUDED = (
    ("usepdb", "--pdb", "a debugger needs the terminal, which workers do not have"),
    ("trace", "--trace", "a debugger needs the terminal, which workers do not have"),
    ("pallas_processes", "--pallas-processes", "all its processes run each test together"),
    ("pallas_distributed", "--pallas-distributed", "all its processes run each test together"),
)


def start_fleet(session: PytestSession) -> None:
    """Connect to the workers, and register the run loop.

    Raises:
      OptionError: there is no such scheduler, or another option excludes a fleet.
    """
    config = session.config
    where = place_of(config, "fleet")
    if getattr(config.option, "dist", "no") != "no":
        raise OptionError(
            f"{where}: the workers of pytest-xdist (-n, --dist) would run the same tests; leave "
            "out one of the two"
        )
    for name, flag, reason in _EXCLUDED:
        if getattr(config.option, name, None):
            raise OptionError(f"{where} and {flag} exclude each other: {reason}")
    if not config.option.collectonly:
        config.pluginmanager.register(FleetRunner(session), PLUGIN)


class FleetRunner:
    """The plugin that replaces pytest's run loop."""

    def __init__(self, session: PytestSession) -> None:
        """Connect to the workers.

        Raises:
          OptionError: there are none.
        """
        assert session.options.fleet is not None
        self.state, self.config = session, session.config
        location = session.options.fleet
        self.facts = session.fleet = FleetFacts(place=str(location), processes=location.workers)
        self.cluster = DaskCluster(location)
        session.config.add_cleanup(self.cluster.close)
        self.silence = _seconds(SILENT_VARIABLE, SILENT_SECONDS)
        self.patience = _seconds(WAIT_VARIABLE, WAIT_SECONDS)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests on the workers.

        Raises:
          pytest.UsageError: no worker can take part.
        """
        if self.config.option.collectonly or not session.items:
            return None
        if session.testsfailed and not self.config.option.continue_on_collection_errors:
            return None  # pytest reports the errors
        reporter: Reporter | None = self.config.pluginmanager.get_plugin("pallas-reporter")
        if reporter is not None:
            reporter.in_order_of([item.nodeid for item in session.items])
        self._begin(session)
        self._run()
        return True

    def _begin(self, session: pytest.Session) -> None:
        """Make what a run of the loop needs."""
        require_no_hardware(self.state)
        self.pytest_session = session
        run = uuid.uuid4().hex[:12]
        self.items: Mapping[str, Any] = {item.nodeid: item for item in session.items}
        isolator = isolator_of(self.config)
        assert isolator is not None
        self.replayer = ResultReplayer(self.state, isolator)
        self.kept = KeptResults(self.config)
        groups: dict[str, list[str]] = {}  # other tests are groups of their own
        for nodeid in self.items:
            groups.setdefault(scope_of(nodeid, self.state.check_names), []).append(nodeid)
        self.ledger = Ledger(groups, run, self._divided)
        self.facts.tasks = len(self.ledger.groups)
        self.setup = encoded(run_setup(self.state, session.items, run))
        self.workers = Workers(
            self.cluster,
            self.facts,
            setup=self.setup,
            say=lambda text: say(self.config, f"fleet: {text}"),
            silence=self.silence,
        )
        self.alone_since = time.monotonic()
        self.idle = 0
        self.seconds: Mapping[str, float] = {}
        # A mutant counts as killed by the first test in the order of collection.
        self.ordered = deque(self.items) if self.state.options.mutate is not None else None
        self.pending: dict[str, Callable[[], None]] = {}

    def _run(self) -> None:
        """Send all tests, and report their results."""
        polled = 0.0
        try:
            self._wait_for_a_worker()
            self.seconds = time_shares(self.config, self.pytest_session.items, self.facts.threads)
            self._repeat()
            while self.ledger.unfinished:
                if time.monotonic() - polled >= max(POLL_SECONDS, len(self.workers.known) / 100):
                    self._look_at_workers()
                    polled = time.monotonic()
                self._send()
                self._stop_if_wanted()
                try:
                    key = self.cluster.ends.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    self._finish_parts()
                    self._progress()
                    continue
                self._ended(key)
                self._finish_parts()
                self._stop_if_wanted()
        except ClusterLostError as error:
            raise pytest.Session.Interrupted(
                f"the scheduler of --pallas-fleet={self.facts.place} is lost: {error}"
            ) from None
        finally:
            self.cluster.cancel([*self.ledger.sent, *self.workers.greetings])
            for parts in [group.parts for group in self.ledger.groups if group.parts]:
                keep_examples(self.state, parts.part_results)  # of a test that did not end
            for nodeid in list(self.ordered or ()):
                if nodeid in self.pending:  # where an earlier one is missing
                    self.pending.pop(nodeid)()

    def _stop_if_wanted(self) -> None:
        """Stop as pytest does, with ``-x`` and the like.

        Raises:
          pytest.Session.Failed, pytest.Session.Interrupted: the session should stop.
        """
        if self.pytest_session.shouldfail:
            raise pytest.Session.Failed(self.pytest_session.shouldfail)
        if self.pytest_session.shouldstop:
            raise pytest.Session.Interrupted(self.pytest_session.shouldstop)

    def _wait_for_a_worker(self) -> None:
        """Wait until the first worker takes part.

        Raises:
          pytest.UsageError: none does.
        """
        until = time.monotonic() + self.patience
        while not self.workers.active:
            self._look_at_workers()
            if self.facts.refused and not self.workers.greetings:
                lines = "".join(f"\n  {w}: {why}" for w, why in self.facts.refused.items())
                raise pytest.UsageError(
                    f"--pallas-fleet={self.facts.place}: no worker has the project and the "
                    f"versions of this process:{lines}"
                )
            if time.monotonic() > until:
                known = self.workers.known
                there = f"none of {len(known)} workers answers" if known else "no worker"
                raise pytest.UsageError(
                    f"--pallas-fleet={self.facts.place}: {there} within {self.patience:g} s. Start "
                    f"some with `dask worker {self.facts.place} --nthreads 1`"
                )
            try:
                self._ended(self.cluster.ends.get(timeout=0.2))
            except queue.Empty:
                continue

    def _look_at_workers(self) -> None:
        """Give tasks of silent and lost workers to others."""
        tasks = self.cluster.tasks()
        for silent in self.workers.look():
            for key in tasks.get(silent.address, ()):
                sent = self.ledger.sent.get(key)
                if sent is None or key not in sent.group.keys:
                    continue
                self.ledger.resend(key)
                if self.cluster.begun(key):
                    worker = self.workers.name_of(silent.address)
                    self._lost(sent, f"{worker} was silent for {silent.silence:.0f} s")
        self.facts.threads = self.workers.threads
        # Dask leaves tasks where they wait, even if a worker that came later has nothing to do.
        self.idle = sum(not tasks.get(address) for address in self.workers.active)
        if self.workers.active:
            self.alone_since = time.monotonic()
        elif self.facts.workers and time.monotonic() - self.alone_since > self.patience:
            raise pytest.Session.Interrupted(
                f"the last worker of --pallas-fleet={self.facts.place} was lost, and no other came "
                f"within {self.patience:g} s"
            )
        self._free_tasks_without_worker()

    def _free_tasks_without_worker(self) -> None:
        """Take back tasks that only lost workers may run."""
        for key, sent in list(self.ledger.sent.items()):
            if sent.addresses is None or self.workers.known.keys() & sent.addresses:
                continue
            begun = self.cluster.begun(key)
            self.cluster.cancel([key])
            self.ledger.take(key)
            if begun:
                self.workers.lose(begun)
                self._lost(sent, f"{begun}: {CLOSED}")
            self.ledger.again(sent.group)

    def _send(self) -> None:
        """Give tasks to workers: one for each of their threads, and a few that wait."""
        active, threads = self.workers.active, self.workers.threads
        there = sum(len(group.keys) for group in self.ledger.groups)
        room = max(threads + -(-threads // 4) - there, self.idle)
        self.idle = 0  # until the next look
        coming = sum(info.threads for info in self.workers.known.values())
        everyone = len(active) == len(self.workers.known)
        addresses = None if everyone else active
        while active and room > 0 and (following := self.ledger.next(coming, addresses)):
            key, sent = following
            task = encoded(self._task(key, sent))
            self.cluster.call(key, worker.work, self.setup, task, addresses=addresses)
            self.facts.sent += 1
            room -= 1

    def _task(self, key: str, sent: Sent) -> FleetTask:
        """Make the task of tests that are to be sent."""
        kernels = {getattr(self.items[nodeid], "place", "") for nodeid in sent.nodeids}
        most = self.config.option.maxfail
        return FleetTask(
            key=key,
            tests=[self._request(self.items[nodeid], sent) for nodeid in sent.nodeids],
            raised={kernel: how for kernel, how in self.state.raised.items() if kernel in kernels},
            changes=sent.group.changes,
            most=max(most - self.pytest_session.testsfailed, 1) if most else 0,
        )

    def _request(self, item: Any, sent: Sent) -> WorkerRequest:
        path, root = item.path, self.config.rootpath
        inside = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        options = self.state.options_for(item)
        seconds = self.seconds.get(item.nodeid)
        if sent.part is not None and sent.group.parts is not None:
            seconds = sent.group.parts.left
        elif seconds is not None:
            seconds = min(seconds, options.fuzz_time or options.mutate_time)
        return WorkerRequest(
            opening=b"",  # of the worker's folder
            nodeid=item.nodeid,
            path=inside if path.is_file() else None,
            timeout=options.timeout,
            seconds=seconds,
            journal=None if options.mutate is None else "",  # a file of the worker
            part=sent.part,
        )

    def _divided(self, nodeid: str) -> Parts | None:
        """Return the parts of a test; None if there would be one, or none."""
        division = divisible(self.items[nodeid])
        if division is None:
            return None
        if division.kind == "rounds" and (division.total or 0) in range(1, division.size + 1):
            return None
        return self.kept.add_to(Parts(nodeid, division, self.seconds.get(nodeid)))

    def _ended(self, key: str) -> None:
        """Use the answer of a worker."""
        ended = self.cluster.ended(key)
        if self.workers.greeted(key, ended):
            return
        sent = self.ledger.take(key)
        if sent is None:
            return
        if ended is None:
            pass  # with the scheduler, or because all of its workers were lost
        elif ended.problem:
            # Dask gave up, or the worker could not run anything: another one may.
            self._lost(sent, ended.problem)
        else:
            self._answered(sent, ended.answer)
        self.ledger.again(sent.group)
        self.facts.done = self.ledger.finished
        self._progress()

    def _answered(self, sent: Sent, body: bytes) -> None:
        """Use the answer of a worker to a task."""
        try:
            answer = decoded(Answer, body)
        except DataError as error:
            self._lost(sent, f"a worker gave an answer that cannot be read: {error}")
        else:
            if answer.refused:
                self.workers.refuse(answer.worker, answer.refused)
            elif answer.before:
                self._look_at_workers()  # the run may end before the next look
                self.workers.lose(answer.before)
                self._lost(sent, f"{answer.before}: {CLOSED}")
            else:
                self._results(sent, answer)

    def _lost(self, sent: Sent, reason: str) -> None:
        """Record that a worker was lost with a task: after some tries, its tests fail."""
        self.facts.repeated += 1
        for nodeid in list(self.ledger.was_lost(sent, reason)):
            self._cancel_parts(sent.group)
            if self.ledger.done(sent.group, nodeid):
                losses = sent.group.losses[sent.name_of(nodeid)]
                self._report(nodeid, partial(self.replayer.lost, self.items[nodeid], losses))

    def _results(self, sent: Sent, answer: Answer) -> None:
        """Report the results of a task; a test that has one already is not reported again."""
        group = sent.group
        for result in answer.results:
            if sent.part is not None:
                self._part_result(group, result)
            elif self.ledger.done(group, result.nodeid):
                if result.death is None:
                    group.changes = result.changes
                self._report_whole(result)
                if result.nodeid in self.pending:
                    self.kept.keep(result)
            if self.pytest_session.shouldfail or self.pytest_session.shouldstop:
                return

    def _report_whole(self, result: TestResult) -> None:
        item = self.items[result.nodeid]
        self._report(result.nodeid, partial(self.replayer.report, item, result))

    def _repeat(self) -> None:
        """Report the tests that an earlier part of the run has done and not reported."""
        groups = {nodeid: group for group in self.ledger.groups for nodeid in group.todo}
        for result in self.kept.whole():
            if result.nodeid in groups and self.ledger.done(groups[result.nodeid], result.nodeid):
                self._report_whole(result)

    def _part_result(self, group: KernelGroup, result: TestResult) -> None:
        """Keep the result of a part, or see that the parts do not say how the test ends."""
        parts = group.parts
        if parts is None or parts.nodeid != result.nodeid:
            return  # a second result
        if result.death is not None or result.exit is not None:
            self._cancel_parts(group)
            self.ledger.whole(group, result.nodeid)
            return
        if parts.add(result):
            self.kept.keep(result)
        else:  # it ended before it ran, as each part does
            self._report_parts(group, parts)

    def _finish_parts(self) -> None:
        """Report the tests all of whose parts have results, or whose time is over."""
        for group in self.ledger.groups:
            if group.parts is not None and group.parts.complete:
                self._report_parts(group, group.parts)
                self.ledger.again(group)
        self.facts.done = self.ledger.finished

    def _report_parts(self, group: KernelGroup, parts: Parts) -> None:
        self._cancel_parts(group)
        self.ledger.done(group, parts.nodeid)
        changes = [
            tuple(change) for result in parts.part_results for change in result.get("database", ())
        ]
        group.changes = [*group.changes, *changes]
        item = self.items[parts.nodeid]
        report = partial(self.replayer.report_parts, item, parts.results, parts.part_results)
        self._report(parts.nodeid, report)

    def _cancel_parts(self, group: KernelGroup) -> None:
        """Forget the parts of a test that are with workers."""
        if group.parts is not None:
            keys = list(group.parts.sent)
            self.cluster.cancel(keys)
            for key in keys:
                self.ledger.take(key)

    def _report(self, nodeid: str, report: Callable[[], None]) -> None:
        """Report a test, with mutants after all earlier ones."""
        if self.ordered is None:
            report()
            return
        self.pending[nodeid] = report
        while self.ordered and self.ordered[0] in self.pending:
            self.pending.pop(self.ordered.popleft())()

    def _progress(self) -> None:
        progress: Progress | None = self.config.pluginmanager.get_plugin("pallas-progress")
        if progress is not None:
            progress.tick()


def _seconds(variable: str, default: float) -> float:
    """Return a time limit from the environment."""
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise OptionError(f"{variable} must be a number of seconds, not {text!r}") from None


# What workers must know of a run, and how long each test may take.


#: Variables that workers get, by name and by prefix: options of pytest, JAX, XLA and Hypothesis,
#: which has another profile where ``CI`` is set.
_VARIABLES = ("PYTEST_ADDOPTS", "CI")
_PREFIXES = ("JAX_", "XLA_FLAGS", "HYPOTHESIS_")

#: Limit on the failing examples that workers get, in bytes.
_MOST_EXAMPLES = 2**20


def run_setup(state: PytestSession, items: Sequence[pytest.Item], run: str) -> RunSetup:
    """Describe the run for its workers."""
    config = state.config
    opening = opening_of(state)
    folder = str(config.invocation_params.dir)
    plugins = [getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins()]
    files_of_tests = [item.path for item in items]
    files_of_tests += [Path(name) for name in plugins if name and name.endswith(".py")]
    directory = config.invocation_params.dir
    suites = [(module, locate(module, directory).paths) for module in state.options.suite]
    files = None
    if all(location.kind == "folder" for location in state.options.database):
        files = _example_files(state.database, _MOST_EXAMPLES)
    # Each worker writes its own files, which come back with the results.
    scripts = state.options.results is not None or hasattr(config, "cache")
    options = {**opening.options, "pallas_html": "", "pallas_results": "fleet" if scripts else ""}
    options["pallas_trace"] = "" if state.options.trace is None else "fleet"
    recording = state.options.golden in ("record", "update")
    goldens = state.harness.root / state.options.golden_dir
    return RunSetup(
        run=run,
        args=[_relative(arg, folder) for arg in opening.args],
        folder=folder,
        options=options,
        gigabytes=state.options.worker_memory,
        # With accelerators, ``auto`` would not be the simulators.
        environment={**_environment(), "JAX_PLATFORMS": "cpu"},
        project=project_of(config.rootpath, files_of_tests, suites),
        examples=files,
        goldens=os.path.relpath(goldens, folder) if recording else "",
    )


def _environment() -> dict[str, str]:
    """Return the variables that decide what a test computes."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def _relative(arg: str, folder: str) -> str:
    """Return an argument without the working folder, which workers may have elsewhere."""
    return arg.replace(f"{folder}{os.sep}", "") if folder != os.sep else arg


def require_no_hardware(state: PytestSession) -> None:
    """Reject hardware: workers are processes that share the devices of a machine.

    Raises:
      pytest.UsageError: a backend of the run is hardware.
    """
    hardware = [b for b in state.selection.backends if b.kind == "hardware"]
    if hardware:
        raise pytest.UsageError(
            "--pallas-fleet runs simulators, interpreters and compilers, not "
            f"{', '.join(map(label, hardware))}: "
            "its workers share the devices of a machine. Write --pallas-backend=tpu-sim,gpu-sim, "
            "or run on machines with the devices by --pallas-shard"
        )


def _example_files(database: Any, most: int) -> dict[str, bytes] | None:
    """Read the files of a database in a folder, by path; None for another database.

    Args:
      database: a database of Hypothesis.
      most: limit on their size in bytes; the newest files are kept.
    """
    from hypothesis.database import DirectoryBasedExampleDatabase

    if not isinstance(database, DirectoryBasedExampleDatabase):
        return None
    folder = Path(database.path)
    files: dict[str, bytes] = {}
    paths = [path for path in folder.rglob("*") if path.is_file()]  # none without the folder
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime_ns):
        most -= path.stat().st_size
        if most < 0:
            break
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def time_shares(
    config: pytest.Config, items: Sequence[pytest.Item], threads: int
) -> Mapping[str, float]:
    """Return the seconds of each test that has a time limit, on all workers together, by node id.

    All kernels get equal times, of ``--pallas-fuzz-time`` or ``--pallas-mutate-time`` on each of
    the workers. Workers run tests at the same time, so the time that one leaves is lost.

    Args:
      config: of the session.
      items: its tests.
      threads: number of tests that run at a time.
    """
    options = current(config).options
    # Tests that an earlier part of the run has done had their share.
    items = [*current(config).done_items, *items]
    seconds = options.fuzz_time if options.mutate is None else options.mutate_time
    if not seconds:
        return {}
    if options.mutate is None:
        shares = weights(items)
    else:
        shares = {item.nodeid: 1.0 for item in items if isinstance(item, MutantsItem)}
    total = sum(shares.values())
    return {nodeid: threads * seconds * share / total for nodeid, share in shares.items()}
