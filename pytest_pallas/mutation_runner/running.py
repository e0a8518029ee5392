"""Run mutants one after the other."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.mutation import Mutant
from pytest_pallas.mutation_runner.journal import Journal
from pytest_pallas.mutation_runner.verdict import MutantVerdict, who
from pytest_pallas.notes import Note
from pytest_pallas.spec import EquivalentMutant

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
    """At most ``most`` mutants, in their order; 0 for all.

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
    """The initial verdict of a mutant."""
    places = "/".join(
        f"{place.file}:{place.line}:{place.column}:{place.end_line}:{place.end_column}"
        for place in mutant.places
    )
    words = (mutant.home, mutant.kernel, mutant.operator, mutant.change, mutant.part, places)
    return MutantVerdict(
        key="|".join(words),
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
    """The verdicts of mutants, without the marks of the spec.

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
        elif verdict.key in marked and any(marks(each, verdict) for each in equivalents):
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


def run_mutants(
    mutants: Iterable[Mutant],
    attempt: Callable[[Mutant], MutantRun],
    *,
    equivalents: Sequence[EquivalentMutant] = (),
    **rest: Any,
) -> list[MutantVerdict]:
    """The verdicts of ``try_mutants``, with the marks of the spec."""
    verdicts = try_mutants(mutants, attempt, equivalents=equivalents, **rest)
    return [settled(verdict, equivalents) for verdict in verdicts]


def merge_verdicts(
    verdicts: Iterable[MutantVerdict], *, name: str, killed: dict[str, str]
) -> list[MutantVerdict]:
    """The verdicts of ``try_mutants``, from verdicts without the kills of other tests and specs.

    Args:
      verdicts: of ``try_mutants`` in several processes, in the order of the mutants; of the same
        mutant, the first one counts.
      name: the name of the test or spec.
      killed: as for ``try_mutants``: the kills of those before it. New ones are added.
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


def settled(verdict: MutantVerdict, equivalents: Sequence[EquivalentMutant]) -> MutantVerdict:
    """The verdict with the marks of the spec."""
    for each in equivalents:
        if marks(each, verdict):
            verdict = dataclasses.replace(verdict, marked=True)
            if verdict.status == "survived":
                return dataclasses.replace(verdict, status="equivalent", reason=each.reason)
    return verdict


def marks(mark: EquivalentMutant, verdict: MutantVerdict) -> bool:
    """Whether a mark matches a mutant."""
    return (
        mark.operator == verdict.operator
        and (not mark.change or mark.change == verdict.change)
        and (not mark.part or mark.part in verdict.part)
        and mark.source in verdict.source
        and (not mark.caller or any(mark.caller in line for line in verdict.callers))
    )


def stale(
    marked: Sequence[EquivalentMutant], verdicts: Sequence[MutantVerdict], *, whole: bool
) -> list[Note]:
    """Notes on stale marks of a spec.

    Args:
      marked: the marks.
      verdicts: the verdicts of the mutants.
      whole: whether these are all mutants, so that every mark must match one of them.
    """
    problems: list[str] = []
    for each in marked:
        about = [verdict for verdict in verdicts if marks(each, verdict)]
        killed = [verdict for verdict in about if verdict.status == "killed"]
        words = f"stale EquivalentMutant({each.operator!r}, source={each.source!r})"
        if killed and len(killed) == len(about):
            problems.append(f"{words}: {who(killed[0])} killed the mutant ({killed[0].change})")
        elif not about and whole:
            problems.append(f"{words}: no mutant has this operator and line")
    return [Note(problem, "mutants") for problem in problems]
