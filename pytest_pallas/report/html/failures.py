"""One failed check on the page: facts and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.errors import Explanation, explanation_of
from pallas_sim.findings import Finding
from pytest_pallas.decoding import decode
from pytest_pallas.record import Record
from pytest_pallas.report.drawings.arguments import cells
from pytest_pallas.report.drawings.charts import against_dims, histogram
from pytest_pallas.report.drawings.grids import (
    MOST_WAITS,
    graph,
    grid,
    part,
    point,
    resource,
    timeline,
)
from pytest_pallas.report.drawings.heat import heat
from pytest_pallas.report.drawings.svg import Svg

#: Titles of facts on the page, if they differ from their names.
_TITLES = {"worst": "worst element", "baseline": "jnp baseline"}

#: Number of findings of a failure with pictures.
_FINDINGS = 4

#: Facts about the drawn call; the others are about the output.
_DRAWN = ("inputs", "mask", "ids", "drawn", "options", "tuning")


@dataclass(frozen=True)
class Figure:
    """A picture with its caption.

    Attributes:
      kind: of picture, such as ``"heat"``.
      picture: as SVG.
      caption: a description.
      table: rows of words below it, beginning with the titles; empty for none.
    """

    kind: str
    picture: Svg
    caption: str
    table: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True)
class FailureCard:
    """A failed check.

    Attributes:
      record: the record of the check.
      where: backend and mesh.
      headline: what is wrong, without kernel, check and backend.
      details: further lines.
      compared: facts about the output, as (name, lines).
      drawn: facts about the drawn call, likewise.
      figures: pictures.
      unavailable: the reason why a picture is missing, or "".
      likewise: other failures with the same cause, which have no card of their own.
    """

    record: Record
    where: str
    headline: str
    details: Sequence[str]
    compared: Sequence[tuple[str, Sequence[str]]]
    drawn: Sequence[tuple[str, Sequence[str]]]
    figures: Sequence[Figure]
    unavailable: str
    likewise: Sequence[Record] = ()


def failure(record: Record, *, drawn: bool = True, likewise: Sequence[Record] = ()) -> FailureCard:
    """A failed record; without pictures unless ``drawn``."""
    explanation = (
        decode(Explanation, record.explanation)
        if record.explanation
        else explanation_of(record.message)
    )
    facts: dict[str, list[str]] = {}
    for fact in explanation.facts:
        facts.setdefault(fact.name, []).extend(fact.text.splitlines())
    details = [line.strip() for line in explanation.details if line.strip()]
    figures: list[Figure] = []
    unavailable = str(record.pictures.get("unavailable", ""))
    try:
        figures.extend(_figures(record) if drawn else ())
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        # as in ``report.pictures.gather``: numbers of a file that do not fit together
        unavailable = unavailable or f"{type(problem).__name__}: {problem}"[:300]
    return FailureCard(
        record=record,
        where=place(record),
        headline=explanation.summary or _without_message(record),
        details=details,
        compared=[(_TITLES.get(k, k), v) for k, v in facts.items() if k not in _DRAWN],
        drawn=[(_TITLES.get(k, k), v) for k, v in facts.items() if k in _DRAWN],
        figures=figures,
        unavailable=unavailable,
        likewise=likewise,
    )


def _without_message(record: Record) -> str:
    """The headline of a record without an error message."""
    passed = record.outcome == "xpassed"
    text = "passed, but is expected to fail" if passed else "failed without a message"
    return f"{text}: {record.reason}" if record.reason else text


def place(record: Record) -> str:
    """Backend and mesh, as in the names of tests."""
    return record.backend + "".join(f"-{axis}{size}" for axis, size in record.mesh.items())


def _figures(record: Record) -> Iterator[Figure]:
    pictures = record.pictures
    errors = pictures.get("errors")
    if errors:
        yield Figure("heat", heat(errors, pictures.get("programs")), *_map_words(pictures))
    if pictures.get("histogram"):
        yield Figure(
            "histogram",
            histogram(pictures["histogram"], pictures["errors"]["unit"]),
            "Number of elements by error. The scale of counts is logarithmic, so that one wrong "
            "element in a million is visible.",
        )
    for name, chart in against_dims(pictures.get("examples", ())):
        yield Figure("scatter", chart, f"The worst error of each example by the size of {name}.")
    for argument in pictures.get("arguments", ()):
        yield Figure("argument", cells(argument), _cells_words(argument))
    for finding in (decode(Finding, data) for data in record.findings[:_FINDINGS]):
        if finding.kind == "race" and len(finding.accesses) == 2:
            yield _race(finding)
        elif finding.waits and finding.kind == "deadlock":
            yield _deadlock(finding)
    for operand in pictures.get("grids", ()):
        found = "; ".join(f"{f['kind']}: {f['message']}" for f in operand["findings"])
        first = len(operand["programs"])
        some = f" (the first {first:,} programs)" if first < operand["count"] else ""
        words = f"Blocks of {operand['operand']} in {operand['kernel']}{some}. {found}"
        yield Figure("grid", grid(operand), words)


def _cells_words(argument: Mapping[str, Any]) -> str:
    """The caption of a mask or of ids."""
    rows, shape = argument["rows"], argument["shape"]
    kind = "Filled cells are True" if argument["role"] == "mask" else "Equal ids have one colour"
    whole = len(rows) * len(rows[0]) == math.prod(shape)
    part = "" if whole else f"; the first {len(rows)} rows and {len(rows[0])} columns"
    return f"{argument['where']}, {argument['words']}. {kind}{part}."


def _race(finding: Finding) -> Figure:
    rows = [
        (
            f"{each.kind} by a copy" if each.copy else each.kind,
            part(each),
            str(each.owner),
            each.line or "unknown",
            point(each.program) or "-",
        )
        for each in finding.accesses
    ]
    return Figure(
        "race",
        timeline(finding.accesses),
        "Two accesses to the same memory, at least one of them a write. Either may come first.",
        [("access", "buffer", "by", "at", "program"), *rows],
    )


def _deadlock(finding: Finding) -> Figure:
    rows = [
        (
            str(each.owner),
            resource(each) or "-",
            " ".join([str(each.needed), each.unit]).strip(),
            str(each.had),
            each.line or "unknown",
            point(each.program) or "-",
        )
        for each in finding.waits[:MOST_WAITS]
    ]
    return Figure(
        "waits",
        graph(finding.waits),
        "Blocked cores (left) and what each waits for (right): no signal is pending.",
        [("who", "waits for", "needs", "has", "at", "program"), *rows],
    )


def _map_words(pictures: Mapping[str, Any]) -> tuple[str, Sequence[Sequence[str]]]:
    """The caption of an error map, and the programs with wrong elements."""
    errors, programs = pictures["errors"], pictures.get("programs")
    shape = ", ".join(map(str, errors["shape"]))
    text = f"The worst error of each cell of {errors['output']}, {errors['dtype']}[{shape}]"
    if len(errors["shape"]) > 2:
        text += ", as rows of its last axis"
    if not programs:
        return text + ".", ()
    block = ", ".join(map(str, programs["block"]))
    grid_ = ", ".join(map(str, programs["grid"]))
    count, shown = programs["count"], len(programs["wrong"])
    noun = "block" if count == 1 else "blocks"
    text += (
        f". Lines are blocks of ({block}) of {programs['kernel']}, grid ({grid_}); "
        f"{count:,} {noun} with wrong elements"
    )
    text += f"; the {shown} with the most are framed." if shown < count else ", framed."
    rows = [
        (
            ", ".join(f"({', '.join(map(str, p))})" for p in each["programs"]) or "unknown",
            f"({', '.join(map(str, each['block']))})",
            f"{each['wrong']:,}",
        )
        for each in programs["wrong"]
    ]
    return text, [("program", "output block", "wrong elements"), *rows]
