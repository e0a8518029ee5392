"""In the reporting process: send tests to a worker, and use the worker's reports.

``Isolator.run`` decides for the item of a spec, ``pytest_pyfunc_call`` for a user-written test;
``apart`` runs either in the worker. Meanwhile pytest's own protocol runs here with an empty call,
and ``pytest_runtest_makereport`` replaces its reports by those of the worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import DeviceError, PallasError
from pytest_pallas.backends.devices import accelerators, only_cpu
from pytest_pallas.backends.ending import longest
from pytest_pallas.backends.protocol import Call, Observer, label
from pytest_pallas.backends.registry import DeviceFacts
from pytest_pallas.compat.testing import add_benchmarks, run_protocol
from pytest_pallas.errors import BackendUnavailableError, IsolationError, NeedsIsolation
from pytest_pallas.isolate import policy
from pytest_pallas.isolate.messages import (
    PROGRAMS,
    StepNote,
    WorkerReply,
    WorkerRequest,
    decoded,
    encoded,
    warning_of,
)
from pytest_pallas.isolate.policy import History
from pytest_pallas.isolate.supervise import (
    GRACE,
    WorkerAnswer,
    error_of,
    opening_of,
    run_in,
    worker_setup,
)
from pytest_pallas.pytest_session import PytestSession, note_raised
from pytest_pallas.run.result import Result
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

#: The name of the registered plugin.
PLUGIN = "pallas-isolation"

#: Seconds for a test that does not use the plugin, and to open the devices.
UNLIMITED, OPENING_SECONDS = 1e6, 60.0

#: The reports of a worker, by ``when``.
_REPORTS = pytest.StashKey[dict[str, pytest.TestReport]]()


class _ProcessEndedError(Exception):
    """An example ended its process."""

    def __init__(self, answer: WorkerAnswer) -> None:
        super().__init__(answer.result.status)
        self.answer = answer


class _HazardObserver(Observer):
    """Stops the execution of calls that may end the process.

    Attributes:
      reason: a reason that applies to all calls but simulated ones; "" if the call decides.
    """

    def __init__(self, reason: str = "") -> None:
        """Create for a test with a reason, or without."""
        self.reason = reason

    def traced(
        self, call: Call, jaxpr: Any, kernels: Sequence[Any], *, simulated: bool = False
    ) -> None:
        """Raise if the call may end the process. The simulator ends waits and loops."""
        from pytest_pallas.grid.kernel_calls import hazards

        if self.reason and not simulated:
            raise NeedsIsolation([self.reason])
        if reasons := () if jaxpr is None else hazards(jaxpr, simulated=simulated):
            raise NeedsIsolation(reasons, kept=True)


class Isolator:
    """The plugin that isolates tests. It starts a worker with the first of them."""

    def __init__(self, session: PytestSession) -> None:
        """Create for a session."""
        self.session = session
        self.history = History(session.config)
        self._close = contextlib.ExitStack()
        self._retired = 0
        self._numbers = itertools.count()
        self._platform, self._environment = "", dict[str, str]()
        self._devices: Future[JobResult] | None = None
        session.config.add_cleanup(self.close)
        session.run_item = self.run
        session.config.pluginmanager.register(_SimulatedTests(self), f"{PLUGIN}-simulated")

    def close(self) -> None:
        """Stop the worker."""
        self._close.close()
        self.history.close()

    @property
    def owns_devices(self) -> bool:
        """Whether the worker owns the devices of hardware backends, and runs all tests."""
        return bool(self._platform)

    def own_devices(self) -> None:
        """Let the worker own the devices, and start it."""
        present = accelerators(os.environ)
        self._platform = "gpu" if present is None else present.platform
        platforms = self._close.enter_context(only_cpu(os.environ))
        programs = str(self._scratch / "programs")
        self._environment |= {"JAX_PLATFORMS": platforms, PROGRAMS: programs}
        self.session.elsewhere = self.devices
        request = WorkerRequest(
            opening=self._opening, nodeid="", path=None, timeout=OPENING_SECONDS, devices=()
        )
        limit = longest(OPENING_SECONDS) + GRACE
        self._devices = self._pool.submit(self._setup, encoded(request), timeout=limit)

    def devices(self, name: str) -> DeviceFacts:
        """Return the devices of a hardware backend, from the worker.

        Raises:
          DeviceError: the worker died when it opened them, or a usage error stops its session.
        """
        return self._known_devices.get(name) or DeviceFacts(problem="there is no such device")

    @cached_property
    def _known_devices(self) -> Mapping[str, DeviceFacts]:
        assert self._devices is not None
        importlib.import_module("jax")  # for collection, while the worker opens the devices
        result = self._devices.result()
        if result.status != "done":
            self._retired += 1
            raise DeviceError(str(error_of(result, "opening the devices")))
        reply = decoded(WorkerReply, result.value)
        if reply.refused:
            raise DeviceError(reply.refused)
        return reply.devices

    def run(self, item: Any, inside: Callable[[], None]) -> None:
        """Run the item of a spec in a worker, or here.

        Args:
          item: the item.
          inside: runs it here.

        Raises:
          PallasError: the error of ``inside``, or the worker did not answer.
        """
        __tracebackhide__ = True
        if policy.reason(item, self.history):
            return self.apart(item)
        if policy.mode(item) != "auto" or not policy.separable(item):
            return inside()
        self.session.observer = _HazardObserver(policy.reason_of_others(item, self.history))
        try:
            return inside()
        except NeedsIsolation as needs:
            if needs.kept:
                self.history.add(policy.key_of(item), str(needs))
        finally:
            self.session.observer = None
        self.session.results.clear()
        return self.apart(item)

    def apart(self, item: Any) -> None:
        """Run an item in the worker; its reports replace those of this process.

        Raises:
          KernelError: the worker died, or did not answer in time.
          IsolationError: the worker could not run the item.
        """
        __tracebackhide__ = True
        item.stash[_REPORTS] = {report.when: report for report in self.reports_of(item)}

    def reports_of(self, item: Any, **fields: Any) -> list[pytest.TestReport]:
        """Run an item in the worker, and return its reports.

        Args:
          item: the item.
          **fields: other fields of the ``WorkerRequest``.

        Raises:
          KernelError: the worker died, or did not answer in time.
          IsolationError: the worker could not run the item.
        """
        __tracebackhide__ = True
        options = self.session.usual_options_for(item)
        slot: Callable[[], float | None] = getattr(item, "slot", lambda: None)
        journal = None if options.mutate is None else self._scratch / str(next(self._numbers))
        facts = self.session.facts
        request = self._request(
            item.path,
            nodeid=item.nodeid,
            timeout=options.timeout if policy.uses_plugin(item) else UNLIMITED,
            seconds=slot(),
            journal=None if journal is None else str(journal),
            killed=self.session.killed,
            facts={spec: known for spec, known in facts.items() if known.path == str(item.path)},
            **fields,
        )
        answer = self._ask(request)
        if options.shrink_time and not options.replay and answer.ended_its_process:
            answer = self._shrunk(item, request, answer, options.shrink_time) or answer
        if answer.reply is None:
            error = self.error_of_end(item, answer.result)
            for note in answer.notes:
                error.add_note(note)
            raise error
        return self.accept(item, answer.reply)

    def _ask(self, request: WorkerRequest) -> WorkerAnswer:
        """Run a test in the worker; another one comes after it if that is spoilt."""
        result = run_in(self._pool, self._setup, request)
        reply = decoded(WorkerReply, result.value) if result.status == "done" else None
        if reply is not None and reply.stained:
            self._retired += 1
        return WorkerAnswer(result, reply)

    def _shrunk(
        self, item: Any, request: WorkerRequest, answer: WorkerAnswer, seconds: float
    ) -> WorkerAnswer | None:
        """Shrink the example that ended the process of the item of a spec.

        Hypothesis draws and shrinks here, and the worker runs each example, by the blob of its
        choices. So an example that crashes or hangs costs a worker each time, and nothing else.

        Returns:
          What came of the simplest one; None if no example of these sizes and choices ends a
          process again.
        """
        from pytest_pallas.compat.fuzzing import blob_of_draw
        from pytest_pallas.draw.covering import Goal
        from pytest_pallas.record import Aspect
        from pytest_pallas.run.drawn import fuzz_of
        from pytest_pallas.run.fuzzing import shrink_with

        step = StepNote.decode(answer.result.note)
        if step is None or not step.call or not hasattr(item, "spec") or item.expected:
            return None

        def run(drawn: Any) -> None:
            del drawn
            again = dataclasses.replace(request, following=None, blob=blob_of_draw())
            if (other := self._ask(again)).ended_its_process:
                raise _ProcessEndedError(other)

        try:
            run_of_item = item.check_run()
            shrink_with(
                dataclasses.replace(fuzz_of(run_of_item), run=run),
                step.call,
                Goal(step.sizes, {Aspect(role, name): word for role, name, word in step.choices}),
                seed=run_of_item.options.seed,
                budget=run_of_item.budget,
                seconds=seconds,
            )
        except _ProcessEndedError as simplest:
            notes = getattr(simplest, "__notes__", ())
            return dataclasses.replace(simplest.answer, notes=notes)
        except PallasError:  # it cannot be drawn here
            return None
        return None

    def learn(
        self,
        parent: pytest.Collector,
        spec: tuple[str, str],
        timeout: float,
        waiting: Callable[[], None],
        patience: float,
    ) -> tuple[Any, str]:
        """Learn the facts of a spec in the worker.

        Args:
          parent: the node whose items the spec becomes.
          spec: the spec, by file and name.
          timeout: the time limit in seconds.
          waiting: called once if that takes more than ``patience`` seconds.
          patience: see ``waiting``.

        Returns:
          The facts, or a message if the worker died, or has not found the spec; and the last step
          that the worker has told.
        """
        request = self._request(parent.path, nodeid="", timeout=timeout, learns=spec)
        limit = longest(timeout) + GRACE  # with the start of the worker's session
        future = self._pool.submit(self._setup, encoded(request), timeout=limit)
        try:
            result = future.result(patience)
        except TimeoutError:
            waiting()
            result = future.result()
        if result.status != "done":
            note = StepNote.decode(result.note)
            step = "" if note is None else note.step
            return str(error_of(result, "tracing it at collection")), step
        reply = decoded(WorkerReply, result.value)
        if reply.exit is not None:
            pytest.exit(*reply.exit)
        if reply.facts is None:
            return "the process for isolated tests has not found it: its calls are not traced", ""
        return reply.facts, ""

    def end_fixtures(self) -> None:
        """End all fixtures that the worker keeps."""
        request = WorkerRequest(opening=self._opening, nodeid="", path=None, timeout=UNLIMITED)
        run_in(self._pool, self._setup, request)

    def _request(self, path: Path, **fields: Any) -> WorkerRequest:
        """Make a request about a test or a spec of a file."""
        collected = str(path) if path.is_file() else None
        return WorkerRequest(opening=self._opening, path=collected, **fields)

    def accept(self, item: Any, reply: WorkerReply) -> list[pytest.TestReport]:
        """Use the results of a worker, also of another machine; returns its reports.

        Raises:
          BackendUnavailableError: the worker has not the devices.
          IsolationError: the worker did not collect the item.
          pytest.exit.Exception: the test called ``pytest.exit``.
        """
        if reply.exit is not None:
            pytest.exit(*reply.exit)
        if reply.refused:
            self._retired += 1  # JAX looks for devices once in each process
            raise BackendUnavailableError(
                f"{item.nodeid}: a device of this run is not available any more: {reply.refused}"
            )
        if not reply.reports:
            raise IsolationError(
                f"{item.nodeid}: the process for isolated tests collected no test with this name. "
                "The name may depend on the process, such as a random number or the order of a "
                "set. Make the name reproducible, or run the test with --pallas-isolate=never."
            )
        hook = self.session.config.hook
        load = hook.pytest_report_from_serializable
        reports = [load(config=item.config, data=data) for data in reply.reports]
        for warning in reply.warnings:
            hook.pytest_warning_recorded.call_historic(kwargs=warning_of(warning))
        add_benchmarks(self.session.config, reply.benchmarks)
        for name, lost in reply.lost_places.items():
            self.session.lost_places.setdefault(name, lost)
        self.session.killed |= reply.killed
        if all(report.passed for report in reports):
            self.history.remove(item.nodeid)
        if reply.hazards is not None and hasattr(item, "spec") and not self.owns_devices:
            key = policy.key_of(item)
            if reply.hazards:
                self.history.add(key, ", ".join(reply.hazards))
            elif self.history.reason(key):
                self.history.remove(key)
        return reports

    def error_of_end(self, item: Any, result: JobResult) -> Exception:
        """Make the error for a worker that did not answer; counts its examples."""
        note = StepNote.decode(result.note)
        if note is not None and note.examples:
            own = getattr(item, "result", None)
            if not isinstance(own, Result):
                names = ("kernel", "check", "backend", "source")
                made = Result(**{name: getattr(note, name) for name in names})
                key = (note.kernel, note.check, note.backend)
                own = self.session.results.setdefault(key, made)
            own.examples = note.examples
        return error_of(result, getattr(item, "headline", item.name))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the running test, in case the session dies."""
        if self.owns_devices or not policy.uses_plugin(item) or policy.mode(item) == "never":
            return (yield)
        with self.history.running(item.nodeid):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record kernels that raised, here or in the worker: their other items do not run."""
        note_raised(self.session, report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a test with the plugin's fixtures in a worker."""
        __tracebackhide__ = True
        if not policy.reason(pyfuncitem, self.history):
            return None
        self.apart(pyfuncitem)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace the report of this process with the worker's."""
        report = yield
        if call.when == "setup":
            item.stash[_REPORTS] = {}
            return report
        reports = item.stash.get(_REPORTS, {})
        if call.when == "call" and reports:
            # A failure before the call happened only in the worker: here, the set-up has passed.
            return reports.get("call", reports["setup"])
        if call.when == "teardown" and report.passed:
            return reports.get("teardown", report)
        return report

    @cached_property
    def _scratch(self) -> Path:
        """A folder for journals, until the session ends."""
        return Path(self._close.enter_context(tempfile.TemporaryDirectory(prefix="pallas-")))

    @cached_property
    def _pool(self) -> WorkerPool:
        return self._close.enter_context(WorkerPool(1))

    @property
    def _setup(self) -> WorkerSetup:
        # Another generation is another setup: the pool stops the earlier worker. A process with a
        # GPU maps more memory than it takes.
        gigabytes = None if self.owns_devices else self.session.options.worker_memory
        return worker_setup(self._retired, gigabytes, self._platform, **self._environment)

    @cached_property
    def _opening(self) -> bytes:
        return encoded(opening_of(self.session))


class HardwareTests:
    """The plugin that runs all tests of a session in the worker, which owns the devices.

    Also those that do not use the plugin: JAX of this process sees no accelerator. Nothing of a
    test, not even its set-up, runs here.
    """

    def __init__(self, isolator: Isolator) -> None:
        """Create for an isolator, whose worker owns the devices."""
        self._isolator, self._awaited = isolator, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test in the worker, and report it."""
        __tracebackhide__ = True
        isolator, hook = self._isolator, item.ihook
        hardware = [b for b in isolator.session.selection.backends if b.kind == "hardware"]
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            reports = isolator.reports_of(
                item,
                raised=isolator.session.raised,
                devices=[label(backend) for backend in hardware],
                following=_following(item, nextitem),
            )
        except PallasError as error:
            self._awaited = False  # the fixtures ended with the process
            let_fail(isolator.session, item, error)
            run_protocol(item)
        else:
            self._awaited = nextitem is not None
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """End the fixtures that the worker keeps for a test, if the session ends before it."""
        if self._awaited:
            self._isolator.end_fixtures()


def let_fail(session: PytestSession, item: Any, error: Exception) -> None:
    """Let pytest's protocol fail a test with an error, without running anything of it.

    Its marks count: an expected failure may be of this type.
    """
    from pytest_pallas.run.item import SpecItem, record_raise

    results = dict(session.results)

    def runtest() -> None:
        __tracebackhide__ = True
        session.results.update(results)  # which the protocol clears
        if isinstance(item, SpecItem):
            _ = item.result  # for the record of this item
            if isinstance(error, PallasError):
                record_raise(item, error)
        raise error

    item.setup = lambda: None
    item.runtest = runtest


def _following(item: pytest.Item, nextitem: pytest.Item | None) -> tuple[str, int] | None:
    """Return the next test, and the number of nodes that it shares with a test."""
    if nextitem is None:
        return None
    pairs = zip(item.listchain(), nextitem.listchain(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))
    return nextitem.nodeid, shared


class _SimulatedTests:
    """The plugin that runs simulated user-written tests in this process.

    An interpreter runs calls that the simulator does not support yet. If such a call needs
    isolation, the test restarts in a worker.
    """

    def __init__(self, isolator: Isolator) -> None:
        """Create for an isolator, which has the worker."""
        self._isolator = isolator

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        """Run a test, and run it again in the worker if a call needs isolation."""
        __tracebackhide__ = True
        isolator = self._isolator
        reason = policy.reason_of_others(pyfuncitem, isolator.history)
        if not reason or policy.reason(pyfuncitem, isolator.history):
            return (yield)
        session = isolator.session
        before, session.observer = session.observer, _HazardObserver(reason)
        try:
            return (yield)
        except NeedsIsolation:
            session.results.clear()
        finally:
            session.observer = before
        isolator.apart(pyfuncitem)
        return True


def isolator_of(config: pytest.Config) -> Isolator | None:
    """Return the isolator plugin, or None in a worker."""
    return config.pluginmanager.get_plugin(PLUGIN)
