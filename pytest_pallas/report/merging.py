"""Results of several runs as one: of shards, or of different tests."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_pallas.errors import OptionError
from pytest_pallas.record import (
    SCHEMA,
    NotApplicable,
    Record,
    from_json,
    plain_not_applicable,
    to_json,
)
from pytest_pallas.report.sections.mutants import others
from pytest_pallas.report.terminal import distinct


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """A results file.

    Attributes:
      path: its path.
      environment: versions and machine, by name.
      options: the options of the run, by name.
      suite: digests of the modules of ``--pallas-suite``.
      records: of its tests.
      not_applicable: the checks that do not apply.
    """

    path: str
    environment: Mapping[str, str]
    options: Mapping[str, Any]
    suite: Mapping[str, str]
    records: Sequence[Record]
    not_applicable: Sequence[NotApplicable]

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which shard it is, and of how many; None for a run without ``--pallas-shard``."""
        found = self.options.get("shard")
        return (int(found[0]), int(found[1])) if found else None


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
        return bool(self.problems) or any(r.outcome in bad for r in self.whole.records)


def read_results(path: Path) -> RunResults:
    """Read a file of ``--pallas-results``.

    Raises:
      OptionError: it cannot be read, is another file, or a newer pytest-pallas has written it.
    """
    try:
        plain = json.loads(path.read_text("utf-8"))
        schema = plain["schema"]
        if schema > SCHEMA:
            raise OptionError(
                f"{path} has the schema {schema}, and this pytest-pallas reads up to {SCHEMA}: "
                "merge with the version that wrote it, or a newer one"
            )
        return RunResults(
            path=str(path),
            environment=plain["environment"],
            options=plain["options"],
            suite=plain.get("suite", {}),
            records=[from_json(each) for each in plain["records"]],
            not_applicable=[NotApplicable(**each) for each in plain.get("not_applicable", ())],
        )
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise OptionError(f"{path} is not a file of --pallas-results") from None


def merge(runs: Sequence[RunResults]) -> Merged:
    """Several runs as one; records in the order of test ids.

    Raises:
      OptionError: two files have the same shard or the same test.
    """
    _refuse_twice(runs)
    first = runs[0]
    records = sorted((r for run in runs for r in run.records), key=lambda record: record.test)
    entries = {each.test: each for run in runs for each in run.not_applicable}
    ran = {record.test for record in records}
    whole = dataclasses.replace(
        first,
        path="",
        options={**first.options, "shard": []},
        suite={name: digest for run in runs for name, digest in run.suite.items()},
        records=records,
        not_applicable=[entries[name] for name in sorted(entries) if name not in ran],
    )
    return Merged(whole=whole, problems=[*_missing(runs), *_conflicts(runs)])


def document(results: RunResults) -> str:
    """Results as the text of a results file."""
    plain = {
        "schema": SCHEMA,
        "environment": dict(results.environment),
        "options": dict(results.options),
        "suite": dict(results.suite),
        "distinct": dataclasses.asdict(distinct(others(results.records))),
        "records": [to_json(record) for record in results.records],
        "not_applicable": [plain_not_applicable(entry) for entry in results.not_applicable],
    }
    return json.dumps(plain, indent=1) + "\n"


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
    """Shards that are not there."""
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


def _conflicts(runs: Sequence[RunResults]) -> list[str]:
    """Versions, options and files of the suite in which runs differ."""
    found: list[str] = []
    for title, field in (("", "environment"), ("option ", "options"), ("suite ", "suite")):
        tables: list[Mapping[str, Any]] = [getattr(run, field) for run in runs]
        for name in dict.fromkeys(name for table in tables for name in table):
            if name == "shard":
                continue
            values = Counter(str(table.get(name, "nothing")) for table in tables)
            if len(values) > 1:
                texts = ", ".join(
                    f"{run.path} has {table.get(name, 'nothing')}"
                    for run, table in zip(runs, tables, strict=True)
                )
                found.append(f"{title}{name} differs: {texts}")
    return found
