"""Run mutants one after the other, and keep their verdicts.

``try_mutants`` runs mutants; how one of them is run is up to its caller (``mutate.item`` and
``mutate.own_tests``). A ``Journal`` keeps the verdicts if the process crashes, ``earlier_run``
reads those of an earlier run, and ``merge_verdicts`` merges those of several processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pytest

from pallas_sim.errors import OptionError
from pallas_sim.findings import read
from pytest_pallas.decoding import DataError, decode, jsonable, parse
from pytest_pallas.errors import DIED
from pytest_pallas.mutate import Mutant
from pytest_pallas.options import place_of
from pytest_pallas.pytest_session import current
from pytest_pallas.record import MutantVerdict, Note
from pytest_pallas.results import read_results
from pytest_pallas.spec import EquivalentMutant


def who(verdict: MutantVerdict) -> str:
    """Name the check that killed a mutant, and its backend; "" if it is not known."""
    return f"{verdict.by} on {verdict.on}" if verdict.on else verdict.by


def score(verdicts: list[MutantVerdict]) -> float | None:
    """Compute the percentage of killed mutants among those that were killed or survived."""
    killed = sum(verdict.status == "killed" for verdict in verdicts)
    survived = sum(verdict.status == "survived" for verdict in verdicts)
    return 100.0 * killed / (killed + survived) if killed + survived else None


class _Line(TypedDict, total=False):
    """A line of a journal: the start of a mutant, or its verdict."""

    begin: MutantVerdict
    end: MutantVerdict


class Journal:
    """The verdicts so far, and a file with two lines for each mutant: its start, and its verdict.

    If a mutant crashes the process, its start has no verdict. The parent process adds the verdict,
    and starts another process, which continues with the next mutant.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the existing file; without a path, keep verdicts in memory only."""
        self._path = path
        self.verdicts: dict[str, MutantVerdict] = {}
        self.begun: MutantVerdict | None = None
        if path is not None and path.exists():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(DataError):  # its writer died in the middle
                    self._take(parse(line))

    def begin(self, verdict: MutantVerdict) -> None:
        """Record the start of a mutant."""
        self._write({"begin": jsonable(verdict)})

    def end(self, verdict: MutantVerdict) -> None:
        """Record the verdict of a mutant."""
        self._write({"end": jsonable(verdict)})

    def _take(self, plain: dict[str, Any]) -> None:
        line: _Line = decode(_Line, plain)
        if "begin" in line:
            self.begun = line["begin"]
        elif "end" in line:
            verdict = line["end"]
            self.verdicts[verdict.key] = verdict
            self.begun = None

    def _write(self, plain: dict[str, Any]) -> None:
        self._take(plain)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(plain) + "\n")


def died_of_a_mutant(path: Path, error: Exception) -> bool:
    """Record the mutant that crashed a process as killed; return whether there is one.

    Args:
      path: the journal of the process.
      error: the error of the crash.
    """
    journal = Journal(path)
    if journal.begun is None or not isinstance(error, DIED):
        return False
    how = type(error).__name__
    journal.end(dataclasses.replace(journal.begun, status="killed", how=how))
    return True


# Verdicts of an earlier run, from the file of its ``--pallas-results``.

#: The name of the earlier run in reports.
EARLIER = "an earlier run"


@dataclass(frozen=True)
class Earlier:
    """The verdicts of a run on mutants whose source line has not changed.

    Attributes:
      killed: the mutants that it killed, by key, with ``EARLIER``.
      marked: keys of survivors that a spec marked as equivalent.
    """

    killed: dict[str, str] = field(default_factory=dict[str, str])
    marked: frozenset[str] = frozenset()


def earlier_run(config: pytest.Config) -> Earlier:
    """Read the verdicts of ``--pallas-mutate-after``; return an empty ``Earlier`` without it.

    Raises:
      OptionError: as ``read_earlier``.
    """
    after = current(config).options.mutate_after
    if after is None:
        return Earlier()
    try:
        return read_earlier(config.invocation_params.dir / after)
    except OptionError as error:
        raise OptionError(f"{place_of(config, 'mutate_after')}: {error}") from None


def read_earlier(path: Path) -> Earlier:
    """Read the verdicts of a results file.

    Args:
      path: the results file.

    Raises:
      OptionError: as ``read_results``.
    """
    records = read_results(path).records
    verdicts = [
        verdict for record in records for verdict in decode(list[MutantVerdict], record.mutants)
    ]
    same = [verdict for verdict in verdicts if _unchanged(verdict)]
    return Earlier(
        {verdict.key: EARLIER for verdict in same if verdict.status == "killed"},
        frozenset(v.key for v in same if v.status == "equivalent" and v.marked),
    )


def _unchanged(verdict: MutantVerdict) -> bool:
    """Whether the line of a mutant is as it was; the named file may not exist, or be a device."""
    line = read(verdict.where)
    if line is None or not line.file.endswith(".py") or not os.path.isfile(line.file):
        return False
    return line.text == verdict.source


# Run mutants one after the other.

#: The ``how`` of a mutant that another test or spec killed before.
ELSEWHERE = "by another"


@dataclass(frozen=True)
class KilledBy:
    """The check that killed a mutant, and its error.

    Attributes:
      by: the check or the test.
      how: the kind of failure.
      on: the backend of the check, with the sizes of its mesh.
    """

    by: str
    how: str
    on: str = ""


@dataclass(frozen=True)
class MutantRun:
    """The result of one run of a mutant.

    Attributes:
      killed: the check that killed it; None if it was not killed.
      examples: number of examples that ran on it.
      impossible: the reason why it could not be made; "" if it could.
      same: the reason why it is the same program; "" if it is not, or if it was not compared.
    """

    killed: KilledBy | None
    examples: int
    impossible: str = ""
    same: str = ""


def sampled(mutants: Sequence[Mutant], most: int, seed: int) -> list[Mutant]:
    """Choose at most ``most`` mutants, in their order; 0 for all.

    Operators take turns, so that operators with few mutants are included.
    """
    if not most or len(mutants) <= most:
        return list(mutants)
    rng = random.Random(seed)
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(mutant.operator, []).append(mutant)
    for group in groups.values():
        rng.shuffle(group)
    chosen: set[Mutant] = set()
    while len(chosen) < most:
        for group in groups.values():
            if group and len(chosen) < most:
                chosen.add(group.pop())
    return [mutant for mutant in mutants if mutant in chosen]


def unknown(mutant: Mutant) -> MutantVerdict:
    """Make the initial verdict of a mutant."""
    spots = "/".join(
        f"{spot.file}:{spot.line}:{spot.column}:{spot.end_line}:{spot.end_column}"
        for spot in mutant.places
    )
    key = (mutant.home, mutant.kernel, mutant.operator, mutant.change, mutant.part, spots)
    return MutantVerdict(
        key="|".join(key),
        operator=mutant.operator,
        change=mutant.change,
        kernel=mutant.kernel,
        part=mutant.part,
        where=mutant.where,
        called_from=mutant.called_from,
        source=mutant.source,
        callers=mutant.callers,
        status="untried",
    )


def try_mutants(
    mutants: Iterable[Mutant],
    attempt: Callable[[Mutant], MutantRun],
    *,
    journal: Journal,
    name: str,
    killed: dict[str, str],
    until: float | None = None,
    same: Callable[[Mutant], str] = lambda _: "",
    equivalents: Sequence[EquivalentMutant] = (),
    marked: Collection[str] = (),
    begun: Callable[[MutantVerdict], None] = lambda _: None,
) -> list[MutantVerdict]:
    """Run mutants that have no verdict yet; return all verdicts, without the marks of the spec.

    Args:
      mutants: the mutants to run.
      attempt: runs one mutant.
      journal: has the known verdicts, and records new ones.
      name: the name of the test or spec.
      killed: the names of tests and specs that killed mutants, by key. Mutants that others killed
        do not run again. New ones are added.
      until: when to stop, by ``time.monotonic``; None for never.
      same: returns why a mutant is the same program, or ""; called for mutants that do not run.
      equivalents: the marks of the spec, for mutants that need not run again.
      marked: keys of mutants that do not run again as long as the spec marks them.
      begun: called with the verdict of each mutant before it runs.
    """
    keys: list[str] = []
    for mutant in mutants:
        verdict = unknown(mutant)
        keys.append(verdict.key)
        if verdict.key in journal.verdicts:
            if _killed_here(journal.verdicts[verdict.key]):
                killed.setdefault(verdict.key, name)
            continue
        if killed.get(verdict.key, name) != name:
            by = killed[verdict.key]
            untried = dataclasses.replace(verdict, status="killed", by=by, how=ELSEWHERE)
        elif verdict.key in marked and any(matches(mark, verdict) for mark in equivalents):
            untried = dataclasses.replace(verdict, status="survived")
        elif until is not None and time.monotonic() >= until:
            untried = dataclasses.replace(verdict, reason="time was over")
        else:
            begun(verdict)
            journal.begin(verdict)
            tried = _run_one(mutant, verdict, attempt)
            if tried.status == "killed":
                killed[verdict.key] = name
            journal.end(tried)
            continue
        reason = same(mutant)
        journal.end(_equivalent(untried, reason) if reason else untried)
    return [journal.verdicts[key] for key in dict.fromkeys(keys)]


def merge_verdicts(
    verdicts: Iterable[MutantVerdict], *, name: str, killed: dict[str, str]
) -> list[MutantVerdict]:
    """Merge verdicts of processes that did not know of each other's kills.

    Args:
      verdicts: of ``try_mutants``, in the order of the mutants. If a mutant has several, the first
        one counts.
      name: the name of the test or spec.
      killed: as for ``try_mutants``: the kills of earlier tests and specs. New ones are added.
    """
    merged: dict[str, MutantVerdict] = {}
    for verdict in verdicts:
        by = killed.get(verdict.key, name)
        if verdict.key in merged:
            continue
        if by != name:
            verdict = dataclasses.replace(verdict, examples=0, seconds=0.0)
            if verdict.status != "equivalent":
                verdict = dataclasses.replace(
                    verdict, status="killed", by=by, on="", how=ELSEWHERE, reason=""
                )
        elif _killed_here(verdict):
            killed[verdict.key] = name
        merged[verdict.key] = verdict
    return list(merged.values())


def _killed_here(verdict: MutantVerdict) -> bool:
    return verdict.status == "killed" and verdict.how != ELSEWHERE


def _run_one(
    mutant: Mutant, verdict: MutantVerdict, attempt: Callable[[Mutant], MutantRun]
) -> MutantVerdict:
    started = time.monotonic()
    tried = attempt(mutant)
    verdict = dataclasses.replace(
        verdict, examples=tried.examples, seconds=round(time.monotonic() - started, 3)
    )
    if tried.impossible:
        return dataclasses.replace(verdict, reason=tried.impossible)
    if tried.same:
        return _equivalent(verdict, tried.same)
    if tried.killed is None:
        return dataclasses.replace(verdict, status="survived")
    return dataclasses.replace(verdict, status="killed", **dataclasses.asdict(tried.killed))


def _equivalent(verdict: MutantVerdict, reason: str) -> MutantVerdict:
    return dataclasses.replace(verdict, status="equivalent", by="", on="", how="", reason=reason)


def with_marks(verdict: MutantVerdict, equivalents: Sequence[EquivalentMutant]) -> MutantVerdict:
    """Apply the marks of the spec to a verdict: a survivor with a mark is equivalent."""
    for mark in equivalents:
        if matches(mark, verdict):
            verdict = dataclasses.replace(verdict, marked=True)
            if verdict.status == "survived":
                return dataclasses.replace(verdict, status="equivalent", reason=mark.reason)
    return verdict


def matches(mark: EquivalentMutant, verdict: MutantVerdict) -> bool:
    """Whether a mark matches a mutant."""
    return (
        mark.operator == verdict.operator
        and (not mark.change or mark.change == verdict.change)
        and (not mark.part or mark.part in verdict.part)
        and mark.source in verdict.source
        and (not mark.caller or any(mark.caller in line for line in verdict.callers))
    )


def stale(
    equivalents: Sequence[EquivalentMutant], verdicts: Sequence[MutantVerdict], *, whole: bool
) -> list[Note]:
    """Write notes on stale marks of a spec.

    Args:
      equivalents: the marks.
      verdicts: the verdicts of the mutants.
      whole: whether these are all mutants, so that every mark must match one of them.
    """
    problems: list[str] = []
    for mark in equivalents:
        matching = [verdict for verdict in verdicts if matches(mark, verdict)]
        killed = [verdict for verdict in matching if verdict.status == "killed"]
        stale_mark = f"stale EquivalentMutant({mark.operator!r}, source={mark.source!r})"
        if killed and len(killed) == len(matching):
            by = f"{who(killed[0])} killed the mutant ({killed[0].change})"
            problems.append(f"{stale_mark}: {by}")
        elif not matching and whole:
            problems.append(f"{stale_mark}: no mutant has this operator and line")
    return [Note(problem, "mutants") for problem in problems]
