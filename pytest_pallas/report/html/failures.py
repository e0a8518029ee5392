"""One failed check as the page shows it: the message taken apart, and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.record import Record
from pytest_pallas.report.drawings.charts import against_dims, histogram
from pytest_pallas.report.drawings.grids import grid
from pytest_pallas.report.drawings.heat import heat
from pytest_pallas.report.drawings.svg import Svg, clean
from pytest_pallas.report.drawings.waits import graph, timeline, who

#: Lines of a message that begin with one of these words, and what they are called on the page.
_FACTS = {
    "worst": "worst element",
    "kernel": "kernel",
    "expected": "expected",
    "oracle": "oracle",
    "baseline": "jnp baseline",
    "error": "error",
    "wrong at": "wrong at",
    "pattern": "pattern",
    "block": "written by",
    "inputs": "inputs",
    "drawn": "drawn",
    "options": "options",
    "tuning": "tuning",
}

#: Facts that say what was drawn; the others compare.
_DRAWN = ("inputs", "drawn", "options", "tuning")

_LINE = re.compile(rf"  ({'|'.join(_FACTS)}) +(\S.*)")


@dataclass(frozen=True)
class Figure:
    """A picture with what it shows in words.

    Attributes:
      kind: of picture, such as ``"heat"``.
      picture: as SVG.
      caption: what it shows.
      table: rows of words below it, the first of which are the titles; empty for none.
    """

    kind: str
    picture: Svg
    caption: str
    table: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed check.

    Attributes:
      record: what failed.
      where: backend and mesh.
      headline: the first line of the message, without kernel, check and backend.
      said: lines of the message that are neither headline nor facts.
      compared: facts about the answer, as (name, lines).
      drawn: facts about the call, likewise.
      figures: pictures.
      unavailable: why a picture could not be made, or "".
    """

    record: Record
    where: str
    headline: str
    said: Sequence[str]
    compared: Sequence[tuple[str, Sequence[str]]]
    drawn: Sequence[tuple[str, Sequence[str]]]
    figures: Sequence[Figure]
    unavailable: str


def failure(record: Record, *, drawn: bool = True) -> Failure:
    """A failed record as it is shown; without pictures unless ``drawn``."""
    text = record.message or f"passed, but is expected to fail: {record.reason}"
    first, *rest = clean(text).splitlines() or [""]
    _, found, short = first.partition(f" on {record.backend}: ")
    if not found:
        _, found, short = first.partition(f" on {record.backend} ")
    facts, said = _taken_apart(rest)
    headline = (short if found else first).strip()
    if headline.endswith("is wrong") and said:  # then the next line says what, and how much of it
        headline = " ".join([headline.removesuffix("is wrong"), said.pop(0)]).strip()
    return Failure(
        record=record,
        where=place(record),
        headline=headline,
        said=said,
        compared=[(_FACTS[k], v) for k, v in facts.items() if k not in _DRAWN],
        drawn=[(_FACTS[k], v) for k, v in facts.items() if k in _DRAWN],
        figures=list(_figures(record.pictures)) if drawn else [],
        unavailable=str(record.pictures.get("unavailable", "")),
    )


def place(record: Record) -> str:
    """Backend and mesh, as in the names of tests."""
    return record.backend + "".join(f"-{axis}{size}" for axis, size in record.mesh.items())


def _taken_apart(lines: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Facts by their names, and all other lines. A line without a name goes with the one above."""
    facts: dict[str, list[str]] = {}
    said: list[str] = []
    current: list[str] | None = None
    for line in lines:
        found = _LINE.fullmatch(line)
        if found:
            current = facts.setdefault(found[1], [])
            current.append(found[2].removeprefix(f"{_FACTS[found[1]]} "))
        elif current is not None and line.startswith(" " * 12):
            current.append(line.strip())
        else:
            current = None
            said.append(line.strip())
    return facts, [line for line in said if line]


def _figures(pictures: Mapping[str, Any]) -> Iterator[Figure]:
    errors = pictures.get("errors")
    if errors:
        yield Figure("heat", heat(errors, pictures.get("programs")), *_map_words(pictures))
    if pictures.get("histogram"):
        yield Figure(
            "histogram",
            histogram(pictures["histogram"], pictures["errors"]["unit"]),
            "How many elements have which error. The counts are logarithmic: one wrong element "
            "of a million is seen.",
        )
    for name, chart in against_dims(pictures.get("examples", ())):
        yield Figure("scatter", chart, f"The worst error of each example by the size of {name}.")
    if pictures.get("race"):
        accesses = pictures["race"]
        yield Figure(
            "race",
            timeline(accesses),
            "Two accesses to one place, at least one of which writes. Either may come first.",
            [
                ("access", "buffer", "by", "at", "program"),
                *(
                    (
                        a["what"],
                        a["buffer"] + (f"[{a['range']}]" if a["range"] else ""),
                        who(a),
                        a["place"],
                        a["program"] or "-",
                    )
                    for a in accesses
                ),
            ],
        )
    if pictures.get("waits"):
        waits = pictures["waits"]
        yield Figure(
            "waits",
            graph(waits),
            "Who waits (left) for what (right) when nobody is left to signal.",
            [
                ("who", "waits for", "needs", "has", "at", "program"),
                *(
                    (
                        w["who"],
                        w["for"] or "-",
                        str(w["amount"]),
                        str(w["value"]),
                        w["place"],
                        w["program"] or "-",
                    )
                    for w in waits
                ),
            ],
        )
    for operand in pictures.get("grids", ()):
        found = "; ".join(f"{f['kind']}: {f['message']}" for f in operand["findings"])
        first = len(operand["programs"])
        some = f" (the first {first:,} programs)" if first < operand["count"] else ""
        words = f"Blocks of {operand['operand']} in {operand['kernel']}{some}. {found}"
        yield Figure("grid", grid(operand), words)


def _map_words(pictures: Mapping[str, Any]) -> tuple[str, Sequence[Sequence[str]]]:
    """What a map shows, and the programs that are wrong."""
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
    text += f", of which {shown} with the most are framed." if shown < count else ", framed."
    rows = [
        (
            ", ".join(f"({', '.join(map(str, p))})" for p in each["programs"]) or "unknown",
            f"({', '.join(map(str, each['block']))})",
            f"{each['wrong']:,}",
        )
        for each in programs["wrong"]
    ]
    return text, [("program", "output block", "wrong elements"), *rows]
