"""``--pallas-resume``: what must be the same, and the results of tests that are done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.compat.testing import count_report
from pytest_pallas.decoding import DataError, decode
from pytest_pallas.options.values import place_of
from pytest_pallas.record import Record
from pytest_pallas.report.results import environment, given_options
from pytest_pallas.report.runs.finished import reports_of
from pytest_pallas.results import RunResults, partial_path, read_results
from pytest_pallas.session import PytestSession

#: Limit on the differences, and on the tests, that a message names.
_MOST = 5


def settle_resume(
    session: PytestSession, digest: Callable[[Sequence[str]], None]
) -> RunResults | None:
    """The run of ``--pallas-resume``; None if there is none yet.

    There is none yet if the file is that of ``--pallas-results``, too, and does not exist: a job
    that is started again and again has one command line.

    Args:
      session: the session.
      digest: sets the session's digests of files, for the node ids of all tests.

    Raises:
      OptionError: the file cannot be read, or is of a run that cannot be taken up here.
    """
    given = session.options.resume
    assert given is not None
    path = session.config.invocation_params.dir / given
    there = path.exists() or partial_path(path).exists()
    if not there and path == _results_path(session):
        return None
    where = place_of(session.config, "resume")
    try:
        found = read_results(path, latest=True)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    try:
        require_readable(found)
    except DataError as error:
        raise OptionError(
            f"{where}: {found.path} is not a file of --pallas-results: {error}"
        ) from None
    if not found.collected:
        raise OptionError(
            f"{where}: {found.path} does not say which tests its run had, so it cannot be taken up"
        )
    folder = session.config.invocation_params.dir
    if Path(found.path).is_relative_to(folder):
        found = replace(found, path=str(Path(found.path).relative_to(folder)))
    digest(found.collected)
    differences = _differences(session, found)
    if differences:
        raise OptionError(
            f"{where}: {found.path} is of another run: {_listed(differences, '; ')}. Run with what "
            "it had, or start anew without --pallas-resume"
        )
    return found


def require_readable(found: RunResults) -> None:
    """Check now what is read at the end of the run: what the tests have found of mutants.

    Raises:
      DataError: it is not what such a test writes.
    """
    for test in found.tests:
        if test.part:
            # late: it imports JAX
            from pytest_pallas.items.parts.mutant_results import MutantsPart

            try:
                decode(MutantsPart, test.part)
            except DataError as error:
                raise error.inside(f".tests[{test.test!r}].part") from None


def _results_path(session: PytestSession) -> Path | None:
    """The results file that was given, also where another machine writes it."""
    config = session.config
    given = config.getoption("pallas_results") or config.getini("pallas_results")
    return config.invocation_params.dir / given if given else None


def _differences(session: PytestSession, found: RunResults) -> list[str]:
    """What differs between a run and this one."""
    here = json.loads(json.dumps([environment(), given_options(session)]))
    texts: list[str] = []
    for title, mine, theirs in zip(
        ("", "option "), here, (found.environment, found.options), strict=True
    ):
        for name in mine:
            # the process that starts workers knows the given backends only
            if name == "backends" and name not in theirs:
                continue
            if mine[name] != theirs.get(name):
                texts.append(
                    f"{title}{name} is {_text(mine[name])}, and was {_text(theirs.get(name))}"
                )
    return [*texts, *_changed(found.files, session.file_digests)]


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The files that differ."""
    return [
        f"{name} {'has changed' if name in before and name in now else _gone(name in now)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _gone(there: bool) -> str:
    return "is new" if there else "is gone"


def _listed(texts: Sequence[str], between: str = ", ") -> str:
    """The first texts, and how many more there are."""
    rest = len(texts) - _MOST
    return between.join(texts[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return "not given" if value is None else str(value)


def require_same_tests(config: pytest.Config, resumed: RunResults, left: Sequence[str]) -> None:
    """Check that the tests that are left are those that the run has not finished.

    Raises:
      pytest.UsageError: they differ.
    """
    unfinished = dict.fromkeys(resumed.unfinished)
    missing = [name for name in unfinished if name not in set(left)]
    new = [name for name in left if name not in unfinished]
    texts = [
        f"{len(names)} {what}: {_listed(names)}"
        for names, what in (
            (missing, "unfinished tests of that run are not collected here"),
            (new, "tests that are collected here are not of that run"),
        )
        if names
    ]
    if texts:
        raise pytest.UsageError(
            f"{place_of(config, 'resume')}: {resumed.path} is of a run of other tests. "
            f"{'. '.join(texts)}. Select the same tests as that run, or start anew without "
            "--pallas-resume"
        )


def records_by_test(resumed: RunResults) -> dict[str, list[Record]]:
    """The records of each test that ended."""
    found: dict[str, list[Record]] = {test.test: [] for test in resumed.tests}
    for record in resumed.records:
        if record.test in found:
            found[record.test].append(record)
    return found


def repeat_reports(config: pytest.Config, resumed: RunResults) -> None:
    """Report the tests that are done, to all but the terminal's line of dots, which counts them."""
    manager: Any = config.pluginmanager
    terminal = manager.get_plugin("terminalreporter")
    report_to = manager.subset_hook_caller("pytest_runtest_logreport", remove_plugins=[terminal])
    records = records_by_test(resumed)
    for test in resumed.tests:
        for report in reports_of(test, records[test.test]):
            report_to(report=report)
            count_report(config, report)


def line(session: PytestSession, resumed: RunResults) -> str:
    """What is done, for the terminal."""
    text = f"resumed: {len(resumed.tests)} of {len(resumed.collected)} tests were done"
    parts = sum(map(len, resumed.parts.values()))
    if parts and session.options.fleet is not None:
        text += f", and {parts} parts of others"
    return text
