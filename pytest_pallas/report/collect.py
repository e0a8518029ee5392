"""Data on the report of a test: properties for JUnit, a location for annotations, records."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import PallasError
from pytest_pallas.backends.processes import gang, process_arguments
from pytest_pallas.backends.protocol import label
from pytest_pallas.errors import DIED, PeerError, facts_of
from pytest_pallas.pytest_session import (
    PART_OUTCOME,
    PART_RESULT,
    RAISED,
    RAISED_ON,
    RECORDS,
    STATUS,
    STOPPED_BY,
    PytestSession,
)
from pytest_pallas.record import Host, Record, error_fields, from_json, to_json
from pytest_pallas.report.pictures import pictures_of

if TYPE_CHECKING:
    from pytest_pallas.replay.saved import Saved

PREFIX = "pallas_"


def add_properties(item: pytest.Item, report: pytest.TestReport, records: list[Record]) -> None:
    """Add the properties of a test's records, which JUnit XML writes as ``<property>``.

    ``--junit-xml`` reads them from the report of the teardown, which copies the item's.
    """
    found = [pair for record in records for pair in properties(record)]
    # a plugin that reruns a test calls this again
    own = [pair for pair in item.user_properties if not pair[0].startswith(PREFIX)]
    item.user_properties[:] = [*own, *found]
    report.user_properties = list(item.user_properties)


def properties(record: Record) -> Iterator[tuple[str, str | int | float]]:
    """A record in a few words and numbers, without unmeasured ones."""
    values: dict[str, Any] = {
        "kernel": record.kernel,
        "check": record.check,
        "backend": record.backend,
        "target": Label.of(record.backend).chip or None,
        "mesh": " ".join(f"{axis}={size}" for axis, size in record.mesh.items()) or None,
        "seed": record.seed,
        "examples": record.examples,
        "error": record.error,
        "baseline": record.baseline,
        "multiple": record.multiple,
    }
    for word, value in values.items():
        if value is not None:
            yield PREFIX + word, value


def locate(item: pytest.Item, report: pytest.TestReport, error: BaseException) -> None:
    """Set the location of a failed spec's report to its kernel.

    CI places annotations there, which is more useful than the spec's own line. The location does
    not change for kernels outside of pytest's root folder, because no pull request changes those.
    """
    context = getattr(facts_of(error).failure, "context", None)
    spec: Any = getattr(item, "spec", None)
    place = None if spec is None or context is None else _place(context.kernel)
    if place is None:
        return
    path, line = place
    root = item.config.rootpath
    if path.is_relative_to(root):
        report.location = (os.path.relpath(path, root), line - 1, report.location[2])


def _place(function: Any) -> tuple[Path, int] | None:
    """The file and the line of a function, also of a jitted function or a partial."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = inspect.unwrap(function)
        else:
            break
    code = getattr(function, "__code__", None)
    return None if code is None else (Path(code.co_filename).resolve(), code.co_firstlineno)


def attach(
    session: PytestSession,
    item: pytest.Item,
    report: pytest.TestReport,
    excinfo: pytest.ExceptionInfo[BaseException] | None,
) -> None:
    """Put the records of a test on its report, and the replay command below its failure."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    outcome, reason = _outcome(report)
    error = None if excinfo is None else excinfo.value
    replay, saved = "", None
    if error is not None and outcome in ("failed", "xfailed"):
        replay = _replay(session, item, error)
        if outcome == "failed":
            saved = _script(session, item, error, replay)
        if outcome == "failed" and not hasattr(item, "replay"):
            script = "" if saved is None else f"\nscript: {saved}"
            if saved is not None and saved.example is not None:
                script += f"\nexample: {saved.example}"
            report.sections.append(("pallas", f"replay: {replay}{script}"))
    if error is not None and outcome == "failed":
        locate(item, report, error)
    records: list[Record] = []
    builders = list(session.results.values())
    for builder in builders:
        # of several checks in one test, the last one ended it
        ended = outcome if builder is builders[-1] or outcome == "skipped" else "passed"
        record = builder.record(
            test=report.nodeid,
            outcome=ended,
            seconds=report.duration,
            reason=reason if ended != "passed" else "",
            seed=session.options_for(item).seed,
            **(error_fields(error) if error is not None and ended in ("failed", "xfailed") else {}),
            replay=replay if ended != "passed" else "",
            **(_files(saved) if ended == "failed" else {}),
            pictures=pictures_of(error, builder) if error is not None and ended == "failed" else {},
        )
        records.append(
            replace(
                record,
                stopped_by=item.stash.get(STOPPED_BY, ""),
                hosts=_hosts(ended, error if ended == "failed" else None),
            )
        )
    status = _status(records)
    if status:
        setattr(report, STATUS, status)
    if RAISED in item.stash and report.when == "call":
        setattr(report, RAISED_ON, list(item.stash[RAISED]))
    if PART_OUTCOME in item.stash and report.when == "call":
        setattr(report, PART_RESULT, item.stash[PART_OUTCOME])
        del item.stash[PART_OUTCOME]
    add_properties(item, report, records)
    setattr(report, RECORDS, [to_json(record) for record in records])


def _hosts(outcome: str, error: BaseException | None) -> tuple[Host, ...]:
    """This process, if it is one of several of a program."""
    processes = gang()
    if processes is None:
        return ()
    because_of = error.processes if isinstance(error, PeerError) else ()
    return (
        Host(
            process=processes.process,
            name=processes.host,
            outcome=outcome,
            because_of=because_of,
        ),
    )


def _status(records: Sequence[Record]) -> str:
    """The status of a test that the plugin skipped; "" for others."""
    if records and all(record.requirement for record in records):
        return "not applicable"
    return "not run" if any(record.stopped_by for record in records) else ""


def _files(saved: Saved | None) -> dict[str, str]:
    """The files of a failure, by record field."""
    if saved is None:
        return {}
    return {"script": str(saved.path or ""), "example": str(saved.example or "")}


def records_of(report: pytest.TestReport) -> Iterator[Record]:
    """The records on a report, also on a worker's report."""
    for plain in getattr(report, RECORDS, ()):
        yield from_json(plain)


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    """The outcome of a test for its record, and its reason."""
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        return ("xfailed" if report.skipped else "xpassed"), str(expected)
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return "skipped", str(text).removeprefix("Skipped: ")
    strict = "[XPASS(strict)]"
    if report.failed and str(report.longrepr).startswith(strict):
        return "xpassed", str(report.longrepr).removeprefix(strict).strip()
    return report.outcome, ""


def _script(
    session: PytestSession, item: pytest.Item, error: BaseException, replay: str
) -> Saved | None:
    """The script that reproduces a failed check; writes it if it does not exist."""
    if not isinstance(error, PallasError) or facts_of(error).failure is None:
        return None
    from pytest_pallas.isolate.leaks import leaving_nothing
    from pytest_pallas.replay.saved import save

    with leaving_nothing(session):  # it may trace the kernel again
        return save(session, item, error, replay)


def _replay(session: PytestSession, item: pytest.Item, error: BaseException) -> str:
    """The command that runs the failing example again.

    A user-written test draws from the session's seed, and Hypothesis replays the failure first.
    """
    own: Any = getattr(item, "replay", None)
    if own is not None:
        return own(error)
    options = session.options_for(item)
    words = ["pytest", f"--pallas-seed={options.seed}", *process_arguments()]
    callspec: Any = getattr(item, "callspec", None)
    backend = None if callspec is None else callspec.params.get("pallas_backend")
    if backend is not None and not isinstance(backend, str):
        failure = facts_of(error).failure if isinstance(error, PallasError) else None
        moved = failure is not None and failure.context.backend.platform != backend.platform
        words.append(f"--pallas-backend={'auto' if moved else label(backend)}")
    if session.config.getoption("pallas_max_examples") is not None:
        words.append(f"--pallas-max-examples={options.max_examples}")
    if isinstance(error, DIED):
        words.append("--pallas-isolate=always")
    words.append(item.nodeid)
    return " ".join(shlex.quote(word) for word in words)
