"""Results of several runs as one: of shards, or of different tests."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import OptionError
from pytest_pallas.results import FinishedTest, RunResults

if TYPE_CHECKING:
    from pytest_pallas.results import FailedPhase

#: Limit on the running tests that a message names.
_MOST = 5


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Several results files as one.

    Attributes:
      whole: as one results file.
      problems: what is missing, or does not fit together.
    """

    whole: RunResults
    problems: Sequence[str]

    @property
    def failed(self) -> bool:
        """Whether a test failed, or the whole is not the whole."""
        bad = ("failed", "xpassed")
        records = any(record.outcome in bad for record in self.whole.records)
        return bool(self.problems or self.other_failures) or records

    @property
    def other_failures(self) -> Sequence[FinishedTest]:
        """Tests that failed without a failed record."""
        shown = {record.test for record in self.whole.records if record.outcome == "failed"}
        return [test for test in self.whole.tests if test.failures and test.test not in shown]


def merge(runs: Sequence[RunResults]) -> Merged:
    """Merge several runs; their records are in the order of test ids.

    Raises:
      OptionError: two files have the same shard or the same test.
    """
    _refuse_twice(runs)
    first = runs[0]
    records = sorted((r for run in runs for r in run.records), key=lambda record: record.test)
    entries = {entry.test: entry for run in runs for entry in run.not_applicable}
    ran = {record.test for record in records}
    ended = {test.test: test for run in runs for test in run.tests}
    names = dict.fromkeys(name for run in runs for name in run.collected)
    # a run that was cut off may not know its backends
    options = {name: value for run in reversed(runs) for name, value in run.options.items()}
    whole = dataclasses.replace(
        first,
        path="",
        options={**options, "shard": []},
        suite={name: digest for run in runs for name, digest in run.suite.items()},
        records=records,
        files={name: digest for run in runs for name, digest in run.files.items()},
        not_applicable=[entries[name] for name in sorted(entries) if name not in ran],
        collected=sorted(names),
        tests=[ended[name] for name in sorted(ended)],
        parts={name: parts for run in runs for name, parts in run.parts.items()},
    )
    problems = [*_missing(runs), *_unfinished(runs), *_conflicts(runs)]
    return Merged(whole=whole, problems=problems)


def _refuse_twice(runs: Sequence[RunResults]) -> None:
    shards: dict[tuple[int, int], str] = {}
    tests: dict[tuple[str, str, str], str] = {}
    for run in runs:
        if run.shard is not None:
            index, count = run.shard
            if run.shard in shards:
                raise OptionError(
                    f"shard {index}/{count} is in both {shards[run.shard]} and {run.path}: leave "
                    "one out"
                )
            shards[run.shard] = run.path
        for key in {(record.test, record.check, record.backend) for record in run.records}:
            if key in tests:
                raise OptionError(
                    f"{key[0]} is in both {tests[key]} and {run.path}: leave one out; shards of "
                    "one run share no test"
                )
            tests[key] = run.path


def _missing(runs: Sequence[RunResults]) -> list[str]:
    """List the shards that are missing."""
    counts = {run.shard[1] for run in runs if run.shard is not None}
    if len(counts) > 1:
        return [f"shards of different runs: of {' and of '.join(map(str, sorted(counts)))}"]
    there = {run.shard[0] for run in runs if run.shard is not None}
    return [
        f"shard {index}/{count} is missing"
        for count in counts
        for index in range(1, count + 1)
        if index not in there
    ]


def _unfinished(runs: Sequence[RunResults]) -> Iterator[str]:
    """Yield what did not end in runs that were cut off or ended early."""
    for run in runs:
        left = len(run.unfinished)
        if not left and not run.cut_off:
            continue
        what = "was cut off" if run.cut_off else "ended early"
        verb = "was" if len(run.running) == 1 else "were"
        running = f", {', '.join(run.running[:_MOST])} {verb} running" if run.running else ""
        yield (
            f"{run.path}: the run {what}: {left} of {len(run.collected)} tests did not end"
            f"{running}; --pallas-resume takes it up"
        )


def _conflicts(runs: Sequence[RunResults]) -> list[str]:
    """List the versions, options and files of the suite in which runs differ."""
    conflicts: list[str] = []
    for title, field in (
        ("", "environment"),
        ("option ", "options"),
        ("suite ", "suite"),
        ("file ", "files"),
    ):
        tables: list[tuple[str, Mapping[str, Any]]] = [(r.path, getattr(r, field)) for r in runs]
        for name in dict.fromkeys(name for _, table in tables for name in table):
            if name == "shard":
                continue
            values = [(path, table.get(name, "nothing")) for path, table in tables]
            if name == "backends" or field == "files":
                # a run that was cut off may not know them; each shard has files of its own tests
                values = [pair for pair in values if pair[1] != "nothing"]
            if len({str(value) for _, value in values}) > 1:
                texts = ", ".join(f"{path} has {value}" for path, value in values)
                conflicts.append(f"{title}{name} differs: {texts}")
    return conflicts


# ``pytest-pallas merge A.json B.json ...``: one results file, one report, one exit status.


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
    parser.add_argument(
        "--coverage", type=Path, metavar="FILE", help="write what of the kernels ran, as LCOV"
    )
    parser.add_argument(
        "--coverage-min",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="fail if less than this percentage of what the kernels can do ran on simulators",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Merge, write and print.

    Returns:
      0 if all passed, 1 if not.

    Raises:
      OptionError: a file cannot be read or written, or two have the same tests.
    """
    from pallas_sim.errors import Explanation
    from pytest_pallas.backends.registry import FAMILIES
    from pytest_pallas.decoding import decode
    from pytest_pallas.mutate.report import others
    from pytest_pallas.report import coverage, orders
    from pytest_pallas.report.files import check_writable, document, write
    from pytest_pallas.report.summary import summary
    from pytest_pallas.report.terminal import count_distinct
    from pytest_pallas.results import read_results

    for flag in ("output", "html", "coverage"):
        if (path := getattr(arguments, flag)) is not None:
            check_writable(path.absolute(), f"--{flag}={path}")
    if arguments.html is not None:
        from pytest_pallas.report.html import check_installed

        check_installed("--html")
    merged = merge([read_results(path, latest=True) for path in arguments.files])
    whole = merged.whole
    names = [family.name for family in FAMILIES]
    if arguments.output is not None:
        write(arguments.output.absolute(), document(whole))
    if arguments.html is not None:
        from pytest_pallas.report.html import page

        command = shlex.join(["pytest-pallas", "merge", *map(str, arguments.files)])
        options = {**whole.options, "command": command}
        environment = {**whole.environment, "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        write(
            arguments.html.absolute(),
            page(whole.records, environment=environment, options=options, families=names),
        )
    width = shutil.get_terminal_size().columns
    rest = others(whole.records)
    if rest:
        _say(summary(rest, families=names, width=width, color=sys.stdout.isatty()))
        _say(str(count_distinct(rest)))
    if kernels := coverage.covered(rest):
        _say("\n".join([coverage.summary(kernels), *coverage.notes(kernels)]))
    if calls := orders.ordered(rest):
        _say("\n".join([orders.summary(calls), *orders.notes(calls)]))
    if arguments.coverage is not None:
        write(arguments.coverage.absolute(), coverage.lcov(kernels, Path.cwd()))
        _say(f"{coverage.described(kernels)} written to {arguments.coverage}")
    below = [*coverage.shortfall(kernels, arguments.coverage_min), *coverage.wrong_keys(kernels)]
    for line in below:
        _say(line)
    for record in whole.records:
        if record.outcome in ("failed", "xpassed"):
            explanation = decode(Explanation, record.explanation) if record.explanation else None
            _say(f"FAILED {record.test} - {explanation.summary if explanation else record.outcome}")
    for test in merged.other_failures:
        _say(f"FAILED {test.test} - {_cause(test.failures[0])}")
    for problem in merged.problems:
        _say(f"problem: {problem}")
    recorded = {record.test for record in whole.records}
    besides = [*merged.other_failures, *(t for t in whole.tests if t.test not in recorded)]
    outcomes = {test.test: test.outcome for test in besides}
    count = Counter((*(record.outcome for record in whole.records), *outcomes.values()))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
    files = "1 file" if len(arguments.files) == 1 else f"{len(arguments.files)} files"
    _say(f"{files}: {counts or 'no test'}")
    return int(merged.failed or bool(below))


def _cause(failure: FailedPhase) -> str:
    """Return a failure in one line."""
    text = failure.summary or failure.message
    return text.strip().partition("\n")[0]


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201
