"""Put data on the report of a test: records, properties for JUnit, a location for annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import PallasError
from pytest_pallas.backends.processes import gang, process_arguments
from pytest_pallas.backends.protocol import code_of, label
from pytest_pallas.errors import DIED, DeviceLostError, PeerError, facts_of, witness_of
from pytest_pallas.pytest_session import (
    PART_OUTCOME,
    PART_RESULT,
    RAISED,
    RAISED_ON,
    RECORDS,
    SECTION,
    STATUS,
    STOPPED_BY,
    PytestSession,
)
from pytest_pallas.record import Host, Record, error_fields, from_json, to_json
from pytest_pallas.report.pictures import pictures_of
from pytest_pallas.run.commands import command_of

if TYPE_CHECKING:
    from pytest_pallas.replay.saved import Saved

PREFIX = "pallas_"


def add_properties(item: pytest.Item, report: pytest.TestReport, records: list[Record]) -> None:
    """Add the properties of a test's records, which JUnit XML writes as ``<property>``.

    ``--junit-xml`` reads them from the report of the teardown, which copies the item's.
    """
    # a plugin that reruns a test calls this again
    own = [pair for pair in item.user_properties if not pair[0].startswith(PREFIX)]
    new = [pair for record in records for pair in properties(record)]
    item.user_properties[:] = [*own, *new]
    report.user_properties = list(item.user_properties)


def properties(record: Record) -> Iterator[tuple[str, str | int | float]]:
    """Yield the names and values of the properties of a record, without unmeasured ones."""
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
    for name, value in values.items():
        if value is not None:
            yield PREFIX + name, value


def locate(item: pytest.Item, report: pytest.TestReport, error: BaseException) -> None:
    """Set the location of a failed spec's report to its kernel.

    CI places annotations there, which is more useful than the spec's own line. The location does
    not change for kernels outside of pytest's root folder, because no pull request changes those.
    """
    context = getattr(facts_of(error).failure, "context", None)
    spec: Any = getattr(item, "spec", None)
    code = None if spec is None or context is None else code_of(context.kernel)
    if code is None:
        return
    path, root = Path(code.co_filename).resolve(), item.config.rootpath
    if path.is_relative_to(root):
        line = code.co_firstlineno - 1  # from 0
        report.location = (os.path.relpath(path, root), line, report.location[2])


def _add_section(report: pytest.TestReport, text: str) -> None:
    """Add the plugin's section to a report, where ``--show-capture`` does not hide it."""
    add: Any = getattr(report.longrepr, "addsection", None)
    if add is None:  # a text, as ``--tb=native`` or another plugin makes
        report.sections.append((SECTION, text))
    else:
        add(SECTION, text, "-")


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
            _add_section(report, f"replay: {replay}{script}")
    if error is not None and outcome == "failed":
        locate(item, report, error)
    records: list[Record] = []
    builders = list(session.results.values())
    for builder in builders:
        # the last check of a test is the one that ended it
        ended = outcome if builder is builders[-1] or outcome == "skipped" else "passed"
        fields: dict[str, Any] = {}
        if error is not None and ended in ("failed", "xfailed"):
            fields |= {**error_fields(error), "witness": witness_of(error)}
        if ended != "passed":
            fields |= {"reason": reason, "replay": replay}
        if error is not None and ended == "failed":
            fields |= {**_files(saved), "pictures": pictures_of(error, builder)}
        records.append(
            builder.record(
                test=report.nodeid,
                outcome=ended,
                seconds=report.duration,
                seed=session.options_for(item).seed,
                stopped_by=item.stash.get(STOPPED_BY, ""),
                hosts=_hosts(ended, error if ended == "failed" else None),
                **fields,
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
    """Describe this process, if it is one of several of a program."""
    processes = gang()
    if processes is None:
        return ()
    peers = error.processes if isinstance(error, PeerError) else ()
    me = Host(process=processes.process, name=processes.host, outcome=outcome, because_of=peers)
    return (me,)


def _status(records: Sequence[Record]) -> str:
    """Choose the status of a test that the plugin skipped; "" for others."""
    if records and all(record.requirement for record in records):
        return "not applicable"
    return "not run" if any(record.stopped_by for record in records) else ""


def _files(saved: Saved | None) -> dict[str, str]:
    """Name the files of a failure, by record field."""
    if saved is None:
        return {}
    return {"script": str(saved.path or ""), "example": str(saved.example or "")}


def records_of(report: pytest.TestReport) -> Iterator[Record]:
    """Read the records on a report, also on a worker's report."""
    for plain in getattr(report, RECORDS, ()):
        yield from_json(plain)


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    """Read the outcome of a test for its record, and its reason."""
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
    """Write the script that reproduces a failed check, if it does not exist; returns its files."""
    if not isinstance(error, PallasError) or facts_of(error).failure is None:
        return None
    if isinstance(error, DeviceLostError):  # arrays on that device cannot be read any more
        return None
    from pytest_pallas.isolate.leaks import leaving_nothing
    from pytest_pallas.replay.saved import save

    with leaving_nothing(session):  # it may trace the kernel again
        return save(session, item, error, replay)


def _replay(session: PytestSession, item: pytest.Item, error: BaseException) -> str:
    """Make the command that runs the failing example again.

    A user-written test draws from the session's seed, and Hypothesis replays the failure first.
    """
    own: Any = getattr(item, "replay", None)
    if own is not None:
        return own(error)
    options = session.options_for(item)
    command = [f"--pallas-seed={options.seed}", *process_arguments()]
    callspec: Any = getattr(item, "callspec", None)
    backend = None if callspec is None else callspec.params.get("pallas_backend")
    if backend is not None and not isinstance(backend, str):
        failure = facts_of(error).failure if isinstance(error, PallasError) else None
        moved = failure is not None and failure.context.backend.platform != backend.platform
        command.append(f"--pallas-backend={'auto' if moved else label(backend)}")
    if session.config.getoption("pallas_max_examples") is not None:
        command.append(f"--pallas-max-examples={options.max_examples}")
    if witness := witness_of(error):
        command.append(f"--pallas-witness={witness}")
    if isinstance(error, DIED):
        command.append("--pallas-isolate=always")
    return command_of(item, command)
