"""Make the card of a failed check for the page of a run: its texts, source code and pictures.

``failure`` takes a record, often of another run's file, so that pictures that do not fit are left
out with the reason. ``report.drawings`` and ``report.charts`` draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.findings import Finding
from pytest_pallas.decoding import decode
from pytest_pallas.draw.meshes import place_of as place_of_mesh
from pytest_pallas.record import Record, record_explanation
from pytest_pallas.report.charts import against_dims, histogram
from pytest_pallas.report.drawings import (
    MOST_WAITS,
    Svg,
    cells,
    graph,
    grid,
    heat,
    order,
    part,
    point,
    resource,
    timeline,
)

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
      table: rows of text below it, beginning with the titles; empty for none.
    """

    kind: str
    picture: Svg
    caption: str
    table: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class SourceExcerpt:
    """Lines of source code around those of a finding.

    Attributes:
      title: the file and the numbers of these lines.
      rows: the number of each line, its text, and whether it is one of these.
    """

    title: str
    rows: Sequence[tuple[int, str, bool]]


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
      sources: the source code around findings.
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
    sources: Sequence[SourceExcerpt]
    figures: Sequence[Figure]
    unavailable: str
    likewise: Sequence[Record] = ()


def failure(record: Record, *, drawn: bool = True, likewise: Sequence[Record] = ()) -> FailureCard:
    """Make the card of a failed record; without pictures unless ``drawn``."""
    explanation = record_explanation(record)
    facts: dict[str, list[str]] = {}
    for fact in explanation.facts:
        facts.setdefault(fact.name, []).extend(fact.text.splitlines())
    details = [line.strip() for line in explanation.details if line.strip()]
    figures: list[Figure] = []
    sources: list[SourceExcerpt] = []
    unavailable = str(record.pictures.get("unavailable", ""))
    try:
        sources.extend(map(_excerpt, record.pictures.get("sources", ())))
        figures.extend(_figures(record) if drawn else ())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        # pictures of a file may be of any values
        unavailable = unavailable or f"{type(problem).__name__}: {problem}"[:300]
    return FailureCard(
        record=record,
        where=record.backend + place_of_mesh(record.mesh),
        headline=explanation.summary or _without_message(record),
        details=details,
        compared=[(_TITLES.get(k, k), v) for k, v in facts.items() if k not in _DRAWN],
        drawn=[(_TITLES.get(k, k), v) for k, v in facts.items() if k in _DRAWN],
        sources=sources,
        figures=figures,
        unavailable=unavailable,
        likewise=likewise,
    )


def _excerpt(source: Mapping[str, Any]) -> SourceExcerpt:
    marked = source["marked"]
    lines = enumerate(source["lines"], source["first"])
    title = f"{source['file']}:{', '.join(map(str, marked))}"
    return SourceExcerpt(title, [(number, text, number in marked) for number, text in lines])


def _without_message(record: Record) -> str:
    """Write the headline of a record without an error message."""
    passed = record.outcome == "xpassed"
    text = "passed, but is expected to fail" if passed else "failed without a message"
    return f"{text}: {record.reason}" if record.reason else text


def _figures(record: Record) -> Iterator[Figure]:
    pictures = record.pictures
    errors = pictures.get("errors")
    if errors:
        yield Figure("heat", heat(errors, pictures.get("programs")), *_map_caption(pictures))
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
        yield Figure("argument", cells(argument), _cells_caption(argument))
    if pictures.get("order"):
        yield _order_figure(record)
    for finding in (decode(Finding, data) for data in record.findings[:_FINDINGS]):
        if finding.kind == "race" and len(finding.accesses) == 2:
            yield _race(finding)
        elif finding.waits and finding.kind == "deadlock":
            yield _deadlock(finding)
    for operand in pictures.get("grids", ()):
        findings = "; ".join(f"{f['kind']}: {f['message']}" for f in operand["findings"])
        first = len(operand["programs"])
        some = f" (the first {first:,} programs)" if first < operand["count"] else ""
        caption = f"Blocks of {operand['operand']} in {operand['kernel']}{some}. {findings}"
        yield Figure("grid", grid(operand), caption)


def _cells_caption(argument: Mapping[str, Any]) -> str:
    """Write the caption of a mask or of ids."""
    rows, shape = argument["rows"], argument["shape"]
    kind = "Filled cells are True" if argument["role"] == "mask" else "Equal ids have one colour"
    whole = len(rows) * len(rows[0]) == math.prod(shape)
    some = "" if whole else f"; the first {len(rows)} rows and {len(rows[0])} columns"
    return f"{argument['where']}, {argument['words']}. {kind}{some}."


def _order_figure(record: Record) -> Figure:
    """Draw the run in which a failure shows, with its steps as a table."""
    run = record.pictures["order"]
    rows = [
        (
            run["lanes"][span["lane"]],
            span["name"] + (", never ends" if span["stuck"] else ""),
            span["line"],
        )
        for span in run["spans"]
    ]
    turns = "; ".join(what for _, what in run["turns"])
    left_out = f" The first {run['left_out']:,} are left out." if run["left_out"] else ""
    return Figure(
        "order",
        order(run),
        "The order in which the failure shows: waits, signals and copies, and what each gives to "
        f"which.{left_out} Red lines are where it leaves the plain order: {turns}. "
        f"--pallas-witness={record.witness} runs it again, and --pallas-trace writes it to a file "
        "for trace viewers.",
        [("who", "does", "at"), *rows],
    )


def _race(finding: Finding) -> Figure:
    rows = [
        (
            f"{access.kind} by a copy" if access.copy else access.kind,
            part(access),
            str(access.owner),
            access.line or "unknown",
            point(access.program) or "-",
        )
        for access in finding.accesses
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
            str(wait.owner),
            resource(wait) or "-",
            f"{wait.needed} {wait.unit}".strip(),
            str(wait.had),
            wait.line or "unknown",
            point(wait.program) or "-",
        )
        for wait in finding.waits[:MOST_WAITS]
    ]
    return Figure(
        "waits",
        graph(finding.waits),
        "Blocked cores (left) and what each waits for (right): no signal is pending.",
        [("who", "waits for", "needs", "has", "at", "program"), *rows],
    )


def _map_caption(pictures: Mapping[str, Any]) -> tuple[str, Sequence[Sequence[str]]]:
    """Write the caption of an error map, and the table of programs with wrong elements."""
    errors, programs = pictures["errors"], pictures.get("programs")
    shape = ", ".join(map(str, errors["shape"]))
    text = f"The worst error of each cell of {errors['output']}, {errors['dtype']}[{shape}]"
    if len(errors["shape"]) > 2:
        text += ", as rows of its last axis"
    if not programs:
        return text + ".", ()
    size = ", ".join(map(str, programs["block"]))
    grid_ = ", ".join(map(str, programs["grid"]))
    count, shown = programs["count"], len(programs["wrong"])
    noun = "block" if count == 1 else "blocks"
    text += (
        f". Lines are blocks of ({size}) of {programs['kernel']}, grid ({grid_}); "
        f"{count:,} {noun} with wrong elements"
    )
    text += f"; the {shown} with the most are framed." if shown < count else ", framed."
    rows = [
        (
            ", ".join(map(point, block["programs"])) or "unknown",
            point(block["block"]),
            f"{block['wrong']:,}",
        )
        for block in programs["wrong"]
    ]
    return text, [("program", "output block", "wrong elements"), *rows]
