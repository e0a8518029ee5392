"""The verdicts on the mutants of a spec: as data that travels between processes, and merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from pallas_sim.findings import Text
from pytest_pallas import notes
from pytest_pallas.decoding import Between, DataError, decode
from pytest_pallas.isolation.messages import Part
from pytest_pallas.mutation_runner.running import ELSEWHERE, merge_verdicts, settled, stale
from pytest_pallas.mutation_runner.verdict import MutantVerdict, to_json
from pytest_pallas.notes import Note, PlainNote
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.spec import EquivalentMutant

#: Number of mutants in a part.
MUTANTS_PER_PART = 16


#: Limit on the number of mutants of a spec.
_Number = Annotated[int, Between(-1, 10**6)]


class MutantsPart(TypedDict):
    """The result of a part of the mutants as plain values."""

    kind: Literal["mutants"]
    first: _Number
    last: _Number
    total: _Number
    whole: bool
    equivalents: list[EquivalentMutant]
    verdicts: list[MutantVerdict]
    notes: dict[Text, list[PlainNote]]


@dataclass(frozen=True)
class MergedMutants:
    """The mutants of several parts, in order.

    Attributes:
      verdicts: without the marks of the spec.
      notes: notes on checks that were left out, by key of the mutant.
      equivalents: the marks of the spec.
      whole: whether the chosen mutants are all that there are.
      total: the number of chosen mutants.
      missing: numbers of the mutants that no part has.
    """

    verdicts: Sequence[MutantVerdict]
    notes: Mapping[str, Sequence[Note]]
    equivalents: Sequence[EquivalentMutant]
    whole: bool
    total: int
    missing: Sequence[int]


def add_verdicts(
    builder: ResultBuilder,
    verdicts: Sequence[MutantVerdict],
    notes_of: Mapping[str, Sequence[Note]],
    *,
    equivalents: Sequence[EquivalentMutant],
    whole: bool,
) -> None:
    """Add the verdicts on a spec's mutants to a builder.

    Args:
      builder: of the item.
      verdicts: of ``try_mutants``.
      notes_of: notes by key of the mutant.
      equivalents: the marks of the spec, which apply now.
      whole: whether these are all mutants of the spec.
    """
    marked = [settled(verdict, equivalents) for verdict in verdicts]
    whole = whole and all(verdict.status != "untried" for verdict in marked)
    builder.examples = sum(verdict.examples for verdict in marked)
    builder.mutants = [to_json(verdict) for verdict in marked]
    builder.notes += stale(equivalents, marked, whole=whole)
    for verdict in verdicts:
        if verdict.how != ELSEWHERE:
            for note in notes_of.get(verdict.key, ()):
                builder.add_note(note)


def mutants_to_json(
    part: Part,
    verdicts: Sequence[MutantVerdict],
    notes_of: Mapping[str, Sequence[Note]],
    *,
    equivalents: Sequence[EquivalentMutant],
    total: int,
    whole: bool,
) -> dict[str, Any]:
    """The result of a part of the mutants, as plain JSON values.

    Args:
      part: the part.
      verdicts: of ``try_mutants``.
      notes_of: notes by key of the mutant.
      equivalents: the marks of the spec.
      total: the number of chosen mutants of the spec.
      whole: whether the chosen mutants are all that there are.
    """
    return {
        "kind": part.kind,
        "first": part.first,
        "last": min(part.last, total - 1),
        "total": total,
        "whole": whole,
        "equivalents": [dataclasses.asdict(each) for each in equivalents],
        "verdicts": [to_json(verdict) for verdict in verdicts],
        "notes": {key: [notes.to_json(note) for note in of] for key, of in notes_of.items()},
    }


def merge_into(
    builder: ResultBuilder,
    results: Sequence[Mapping[str, Any]],
    *,
    name: str,
    killed: dict[str, str],
) -> Sequence[int]:
    """Merge the results of parts into the builder of their item; see ``merge_mutants``.

    Returns:
      The numbers of the mutants that no part has.
    """
    merged = merge_mutants(results, name=name, killed=killed)
    add_verdicts(
        builder,
        merged.verdicts,
        merged.notes,
        equivalents=merged.equivalents,
        whole=merged.whole,
    )
    return merged.missing


def merge_mutants(
    results: Sequence[Mapping[str, Any]], *, name: str, killed: dict[str, str]
) -> MergedMutants:
    """Merge the results of parts, given in any order, some perhaps twice.

    Args:
      results: from ``mutants_to_json``; one at least.
      name: the name of the spec.
      killed: as for ``merge_verdicts``.

    Raises:
      DataError: a result is none.
    """
    parts: list[MutantsPart] = decode(list[MutantsPart], results)
    if not parts:
        raise DataError("has no part of its mutants")
    ordered = sorted(parts, key=lambda result: result["first"])
    verdicts = [each for result in ordered for each in result["verdicts"]]
    have = {n for result in ordered for n in range(result["first"], result["last"] + 1)}
    total = ordered[0]["total"]
    return MergedMutants(
        verdicts=merge_verdicts(verdicts, name=name, killed=killed),
        notes={key: of for result in reversed(ordered) for key, of in result["notes"].items()},
        equivalents=ordered[0]["equivalents"],
        whole=ordered[0]["whole"],
        total=total,
        missing=[number for number in range(total) if number not in have],
    )
