"""What was done with goldens, in a line or two, from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_pallas.errors import GoldenError
from pytest_pallas.record import Record
from pytest_pallas.report.section import Results, section
from pytest_pallas.session import PytestSession

#: What is counted, in the order of the line.
_COUNTED = ("recorded", "replaced", "unchanged", "compared", "different", "missing", "lost")

_USED = "used "

#: So many kernels of unused goldens are named.
_NAMED = 4


def summary(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """How many goldens were recorded or compared, and which of the folder were not asked for."""
    if session.goldens is None:
        return
    folder = session.goldens.store.folder
    counts = sum((Counter(record.goldens) for record in records), Counter[str]())
    words = [f"{counts[name]} {name}" for name in _COUNTED if counts[name]]
    yield f"goldens in {folder}: {', '.join(words) or 'none'}"
    if counts["missing"]:
        yield "missing: these calls were not recorded; record again where the goldens are from"
    if counts["lost"]:
        yield "lost: these calls were too large to keep, and other ones are drawn by now"
    if session.goldens.mode == "replay":
        yield from _unused(session, records, counts)


def _unused(
    session: PytestSession, records: Sequence[Record], counts: Counter[str]
) -> Iterator[str]:
    """Goldens of kernels that ran which nobody asked for."""
    assert session.goldens is not None
    ran = {record.kernel for record in records}
    unused: Counter[str] = Counter()
    try:
        for goldens in session.goldens.index.values():
            for golden in goldens:
                if golden.kernel in ran and not counts[_USED + golden.name]:
                    unused[f"{golden.kernel} {golden.check}"] += 1
    except GoldenError:
        return  # which has failed tests
    if unused:
        names = [f"{name} ({count})" for name, count in unused.most_common(_NAMED)]
        more = ["..."] if len(unused) > _NAMED else []
        yield f"unused: {unused.total()} goldens were not asked for: {', '.join(names + more)}"


@section("goldens")
def section_of_goldens(results: Results) -> Iterator[str]:
    """What was done with goldens."""
    yield from summary(results.session, results.records)
