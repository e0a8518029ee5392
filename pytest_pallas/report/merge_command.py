"""``pytest-pallas merge A.json B.json ...``: one results file, one report, one exit status."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_pallas.results import Failure

_DESCRIPTION = """\
Join the results of several runs, such as the shards of one suite: files of --pallas-results. It
prints the table and the failures of all of them. The exit status is 0 if all passed, 1 if a test
failed, a shard is missing, or the runs had other versions, options or files, and 2 for files that
cannot be joined."""


def add_parser(commands: Any) -> None:
    """Add the command ``merge`` to the subparsers of an ``argparse.ArgumentParser``."""
    parser = commands.add_parser(
        "merge", help="join the results of shards", description=_DESCRIPTION
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULTS.json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="write the joined results"
    )
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="write a report of them")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Merge, write and print.

    Returns:
      0 if all passed, 1 if not.

    Raises:
      OptionError: a file cannot be read or written, or two have the same tests.
    """
    from pallas_sim.errors import Explanation
    from pytest_pallas.backends import FAMILIES
    from pytest_pallas.decoding import decode
    from pytest_pallas.report import merging
    from pytest_pallas.report.files import check_writable, write
    from pytest_pallas.report.sections.mutants import others
    from pytest_pallas.report.summary import summary
    from pytest_pallas.report.terminal import distinct, line
    from pytest_pallas.results import read_results

    for flag in ("output", "html"):
        if (path := getattr(given, flag)) is not None:
            check_writable(path.absolute(), f"--{flag}={path}")
    if given.html is not None:
        from pytest_pallas.report.html.page import check_installed

        check_installed("--html")
    merged = merging.merge([read_results(path, latest=True) for path in given.files])
    whole = merged.whole
    names = [family.name for family in FAMILIES]
    if given.output is not None:
        write(given.output.absolute(), merging.document(whole))
    if given.html is not None:
        from pytest_pallas.report.html.page import page

        command = shlex.join(["pytest-pallas", "merge", *map(str, given.files)])
        options = {**whole.options, "command": command}
        environment = {**whole.environment, "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        write(
            given.html.absolute(),
            page(whole.records, environment=environment, options=options, families=names),
        )
    width = shutil.get_terminal_size().columns
    rest = others(whole.records)
    if rest:
        _say(summary(rest, families=names, width=width, color=sys.stdout.isatty()))
        _say(line(distinct(rest)))
    for record in whole.records:
        if record.outcome in ("failed", "xpassed"):
            found = decode(Explanation, record.explanation) if record.explanation else None
            _say(f"FAILED {record.test} - {found.summary if found else record.outcome}")
    for test in merged.other_failures:
        _say(f"FAILED {test.test} - {_cause(test.failures[0])}")
    for problem in merged.problems:
        _say(f"problem: {problem}")
    told = {record.test for record in whole.records}
    besides = [*merged.other_failures, *(t for t in whole.tests if t.test not in told)]
    outcomes = {test.test: test.outcome for test in besides}
    count = Counter((*(record.outcome for record in whole.records), *outcomes.values()))
    words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
    files = "1 file" if len(given.files) == 1 else f"{len(given.files)} files"
    _say(f"{files}: {words or 'no test'}")
    return int(merged.failed)


def _cause(failure: Failure) -> str:
    """A failure in one line."""
    text = failure.summary or failure.message
    return text.strip().partition("\n")[0]


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201
