"""Write the timeline of one simulated run for a trace viewer, with ``--pallas-trace``.

The timeline is that of the failing example of the last failed test, in the schedule in which it
failed, or else of the last example of the last test, in the default schedule. The example is
simulated once more after its test. Each process writes its timeline beside the file; the reporting
process selects one.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import OptionError, first_line
from pallas_sim.findings import Text
from pytest_pallas.backends.protocol import UNOBSERVED, label
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.decoding import decode
from pytest_pallas.errors import BackendUnavailableError, facts_of
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.report.files import check_writable
from pytest_pallas.session import LastRun

#: The attribute of a ``TestReport`` with a ``SavedTimeline`` as plain values, for other processes.
ATTRIBUTE = "pallas_trace"

#: A viewer for timelines.
VIEWER = "https://ui.perfetto.dev"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedTimeline:
    """The timeline of a test.

    Attributes:
      test: its node id.
      kernel: name of the kernel that was run.
      backend: label of the backend.
      failed: whether the test failed.
      drawn: the arguments.
      schedule: the schedule of the run, unless it was the default.
      file: its path; "" if there is none.
      problem: the reason why there is none, or "".
    """

    test: str
    kernel: str
    backend: str
    failed: bool
    drawn: Text
    schedule: Text = ""
    file: str = ""
    problem: Text = ""


def check_trace(session: PytestSession) -> None:
    """Make the path absolute, and check before any test runs that there can be a timeline.

    Raises:
      OptionError: the file cannot be written, or no backend simulates.
    """
    path = session.options.trace
    if path is None:
        return
    flag = f"--pallas-trace={path}"
    absolute = session.config.invocation_params.dir / path
    check_writable(absolute, flag)
    try:
        backends = session.selection.backends
    except BackendUnavailableError as error:
        raise OptionError(str(error)) from None
    if all(backend.kind != "simulating" for backend in backends):
        names = ", ".join(map(label, backends))
        raise OptionError(
            f"{flag}: only simulators have timelines, and the backend is {names}; use "
            "--pallas-backend=tpu-sim or gpu-sim"
        )
    session.options = dataclasses.replace(session.options, trace=absolute)


def attach(
    session: PytestSession,
    report: pytest.TestReport,
    excinfo: pytest.ExceptionInfo[BaseException] | None,
) -> None:
    """Put the timeline of a test on its report, if it ran on the simulator."""
    ran, session.ran = session.ran, None
    if report.when != "call" or report.skipped or session.options.mutate is not None:
        return
    failed = report.failed
    if failed and excinfo is not None:
        ran = failing_run(excinfo.value) or ran
    if ran is None or not isinstance(ran.backend, Simulator):
        return
    if failed or not session.traced_failure:
        session.traced_failure |= failed
        trace = _trace(session, report.nodeid, ran, ran.backend, failed=failed)
        setattr(report, ATTRIBUTE, dataclasses.asdict(trace))


class TraceReporter:
    """Selects the timeline, and reports it."""

    def __init__(self, session: PytestSession) -> None:
        """Report for ``session``."""
        self.session = session
        self.selected: SavedTimeline | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the last timeline of a failed test, or else of a passed one."""
        if not hasattr(report, ATTRIBUTE):
            return
        trace: SavedTimeline = decode(SavedTimeline, getattr(report, ATTRIBUTE))
        former, path = self.selected, self.session.options.trace
        # Another process wrote it: only a file where ``_trace`` writes it is moved or removed.
        if trace.file and path is not None:
            file = Path(trace.file)
            if file.parent != path.parent or not file.name.startswith(f".{path.name}."):
                trace = dataclasses.replace(trace, file="", problem="it is no file of this run")
        if former is not None and former.failed and not trace.failed:
            trace, former = former, trace
        if former is not None and former.file:
            Path(former.file).unlink(missing_ok=True)
        self.selected = trace

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Move it to the requested file."""
        path, trace = self.session.options.trace, self.selected
        if path is None or trace is None or not trace.file:
            return
        try:
            Path(trace.file).replace(path)
        except OSError as error:
            self.selected = dataclasses.replace(trace, file="", problem=str(error))
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report the timeline, below the tables."""
        path, trace = self.session.options.trace, self.selected
        assert path is not None
        folder = self.session.config.invocation_params.dir
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        if trace is None:
            terminalreporter.write_line(
                f"--pallas-trace={shown}: not written: no test ran a kernel on the simulator",
                yellow=True,
            )
            return
        which = "the failing example" if trace.failed else "the last example"
        example = f"{which} of {trace.test}: {trace.kernel} on {trace.backend}, {trace.drawn}"
        example += f", with {trace.schedule}" if trace.schedule else ""
        if trace.file:
            terminalreporter.write_line(f"timeline written to {shown} (open it in {VIEWER})")
            terminalreporter.write_line(f"  of {example}")
        else:
            line = f"--pallas-trace={shown}: not written: {trace.problem}; the call is {example}"
            terminalreporter.write_line(line, red=True)


def failing_run(error: BaseException) -> LastRun | None:
    """Make the failing call of an error again, with its schedule; None if there is none."""
    from pytest_pallas.checks.verdict import failing_call

    failure = facts_of(error).failure
    if failure is None:
        return None
    return LastRun(failure.name, failure.context.backend, failing_call(error))


def _trace(
    session: PytestSession, test: str, ran: LastRun, backend: Simulator, *, failed: bool
) -> SavedTimeline:
    """Simulate a run once more, and write its timeline to a temporary file."""
    from pallas_sim import timeline_text
    from pytest_pallas.backends.execution import describe_arrays
    from pytest_pallas.backends.protocol import Schedule

    plain = ran.call.schedule == Schedule()
    trace = SavedTimeline(
        test=test,
        kernel=ran.kernel,
        backend=label(backend),
        failed=failed,
        drawn=describe_arrays(ran.call.args) or "no arrays",
        schedule="" if plain else str(ran.call.schedule),
    )
    timeline, error = backend.trace(ran.call.with_settings(observer=UNOBSERVED))
    if not timeline.spans:
        raised = f"{type(error).__name__}: {first_line(error)}" if error else ""
        return dataclasses.replace(trace, problem=raised or "the call runs no kernel")
    about = {name: value for name, value in dataclasses.asdict(trace).items() if value != ""}
    about |= {"raised": str(error)} if error is not None else {}
    path = session.options.trace
    assert path is not None
    try:
        handle, file = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(timeline_text(timeline, about))
        Path(file).chmod(0o644)
    except OSError as problem:  # the folder existed at the start
        return dataclasses.replace(trace, problem=str(problem))
    return dataclasses.replace(trace, file=file)
