"""Write the files of a session at its end, each in one step; they are checked at its start.

``--pallas-results`` writes the records as JSON (docs/reference.md, "Results"),
``--pallas-failures`` only those of failures, without what their messages say as well, and
``--pallas-html`` the page, which ``report.html`` renders, and ``--pallas-coverage`` what of the
kernels ran (``report.coverage``).

``--pallas-trace`` writes the timeline of one simulated run, for a trace viewer: that of the failing
example of the last failed test, in the schedule in which it failed, or else of the last example of
the last test, in the default schedule. The example is simulated once more after its test. Each
process writes its timeline beside the file; the reporting process selects one.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError, first_line
from pallas_sim.findings import Text
from pytest_pallas._version import __version__
from pytest_pallas.backends.protocol import UNOBSERVED, label
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.compat.testing import worker_count
from pytest_pallas.decoding import decode, jsonable, replacing
from pytest_pallas.errors import BackendUnavailableError, facts_of
from pytest_pallas.mutate.report import others
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import (
    BAD,
    SCHEMA,
    STATUSES,
    Record,
    status_of,
    to_json,
)
from pytest_pallas.report.coverage import covered, described, lcov
from pytest_pallas.report.section import number
from pytest_pallas.report.terminal import count_distinct, entries
from pytest_pallas.results import RunResults, plain_tests, text_parts
from pytest_pallas.session import LastRun

if TYPE_CHECKING:
    from pytest_pallas.results import RunProgress


#: User and password in a URL such as that of ``--pallas-database``.
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")


def check_output_files(session: PytestSession) -> None:
    """Make their paths absolute, because a test may change the working directory, and check them.

    Raises:
      OptionError: a file cannot be written, or a package for it is not installed.
    """
    folder = session.config.invocation_params.dir
    for name in session.options.writes:
        path: Path = getattr(session.options, name)
        flag = f"--pallas-{name}={path}"
        if name == "html":
            from pytest_pallas.report.html import check_installed

            check_installed(flag)
        path = folder / path
        session.options = dataclasses.replace(session.options, **{name: path})
        check_writable(path, flag)


def write_files(
    session: PytestSession,
    records: Sequence[Record],
    sections: Sequence[tuple[str, str]],
    kept: RunProgress | None = None,
) -> Iterator[tuple[bool, str]]:
    """Write the requested files; yields whether each was written, and a line about it.

    Args:
      session: the session.
      records: its records.
      sections: those of the project: names and texts.
      kept: the tests of the run; its journal is closed, and removed once the results are written.
    """
    for name in session.options.writes:
        path: Path = getattr(session.options, name)
        count = number(len(records), "record")
        if name == "html":
            parts, count = _page(session, records, sections), f"report of {count}"
        elif name == "failures":
            bad = sum(record.outcome in BAD for record in others(records))
            parts, count = failures(session, records), number(bad, "failure")
        elif name == "coverage":
            kernels = covered(others(records))
            parts, count = lcov(kernels, session.config.rootpath), described(kernels)
        else:
            names = ("collected", "tests", "parts")
            results = RunResults(
                path="",
                **about(session),
                options=option_values(session),
                records=records,
                not_applicable=entries(session.not_applicable, records),
                **({} if kept is None else {name: getattr(kept, name) for name in names}),
            )
            fleet = {} if session.fleet is None else {"fleet": jsonable(session.fleet)}
            parts = document(results, **fleet)
        folder = session.config.invocation_params.dir  # as the user gave it
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        line, written = f"{count} written to {shown}", True
        try:
            write(path, parts)
        except OSError as error:  # the folder existed at the start
            line, written = f"--pallas-{name}={shown}: cannot write the file: {error}", False
        if name == "results" and kept is not None:
            kept.close(written=written)
        yield written, line


def _page(
    session: PytestSession, records: Sequence[Record], sections: Sequence[tuple[str, str]]
) -> Iterable[str]:
    from datetime import UTC, datetime

    from pytest_pallas.report.html import page

    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    command = shlex.join(["pytest", *session.config.invocation_params.args])
    return page(
        records,
        environment={**environment(), "written": written},
        options={**option_values(session), "command": _PASSWORD.sub("***@", command)},
        recorded=None if session.costs is None else session.costs.entries,
        families=list(session.families),
        sections=sections,
    )


def check_writable(path: Path, flag: str) -> None:
    """Check before any test runs that a file can be written.

    Raises:
      OptionError: it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise OptionError(
            f"{flag}: cannot write the file: {error}. Give a file in a writable folder that exists."
        ) from None


def write(path: Path, parts: Iterable[str]) -> None:
    """Write a file in one step.

    Args:
      path: the file.
      parts: its text in parts, so that large files need not be in memory as a whole.
    """
    with replacing(path) as file:
        file.writelines(part.encode() for part in parts)


def document(results: RunResults, **more: Any) -> Iterator[str]:
    """Write results, and more fields, as the text of a results file, in parts."""
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": dict(results.environment),
        "suite": dict(results.suite),
        "files": dict(results.files),
        "options": dict(results.options),
        "distinct": dataclasses.asdict(count_distinct(others(results.records))),
        "records": map(to_json, results.records),
        "not_applicable": map(jsonable, results.not_applicable),
        "tests": plain_tests(results.collected, results.tests, results.parts),
    }
    return text_parts({**whole, **more})


#: Fields of a record that the file of failures leaves out; its message has what they say.
_LONG = (
    *("explanation", "pictures", "compiled", "inputs", "signatures", "mutants"),
    *("coverage", "unreached", "simulators"),
)


def failures(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """Write the failures as JSON, in parts: their fields that are not empty, without long ones."""
    rest = others(records)
    count = Counter(map(status_of, rest))
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(),
        "options": option_values(session),
        "counts": {name: count[name] for name in STATUSES},
        "failures": (_compact(to_json(record)) for record in rest if record.outcome in BAD),
    }
    return text_parts(whole)


def _compact(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a failure that are neither empty nor long."""
    kept = {name: value for name, value in plain.items() if name not in _LONG}
    kept["others"] = [_compact(other) for other in plain.get("others", ())]
    return {name: value for name, value in kept.items() if value not in ("", None, [], {})}


def journal_head(session: PytestSession, collected: Sequence[str]) -> dict[str, Any]:
    """Make the first line of the journal of a run with these tests, as plain JSON values."""
    left_out = list(session.not_applicable.values())
    return {
        "journal": 1,
        "schema": SCHEMA,
        **about(session),
        "options": known_options(session),
        "not_applicable": jsonable(left_out),
        "collected": list(collected),
    }


def about(session: PytestSession) -> dict[str, Any]:
    """Describe the environment of a run, and the digests of its files."""
    return {
        "environment": environment(),
        "suite": dict(session.suite_digests),
        "files": dict(session.file_digests),
    }


def environment() -> dict[str, str]:
    """List versions, and the kind of machine."""
    return {
        "pytest_pallas": __version__,
        "jax": metadata.version("jax"),
        "hypothesis": metadata.version("hypothesis"),
        "pytest": pytest.__version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }


def option_values(session: PytestSession) -> dict[str, Any]:
    """List the options that determine the tests and their draws, and the available backends."""
    try:
        backends = list(map(label, session.selection.backends))
    except BackendUnavailableError:  # a worker of pytest-xdist has said so
        backends = list(session.options.backend)
    return {"backends": backends, **_options(session)}


def known_options(session: PytestSession) -> dict[str, Any]:
    """List them before the run: a process that starts workers opens no accelerator for it."""
    elsewhere = worker_count(session.config) or session.delegates
    unknown = elsewhere and "selection" not in vars(session)
    return _options(session) if unknown else option_values(session)


#: The options that are written as they are.
_PLAIN = (
    *("backend", "devices", "processes", "profile", "max_examples", "max_bytes", "fuzz_time"),
    *("fuzz_rounds", "seed", "checks", "sanitize", "arithmetic", "read_fences", "golden"),
    *("schedules", "witness"),
)


def _options(session: PytestSession) -> dict[str, Any]:
    options, shard = session.options, session.options.shard
    return {
        **{name: jsonable(getattr(options, name)) for name in _PLAIN},
        "mutate": "off" if options.mutate is None else options.mutate or "all",
        "mutate_operators": list(options.mutate_operators),
        "shard": [] if shard is None else [shard.index, shard.count],
    }


# The timeline of one simulated run.


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


def attach_timeline(
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
