"""The section of the terminal about goldens: how many were recorded, compared, or not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_pallas.errors import GoldenError
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import Record
from pytest_pallas.report.section import Results, section

#: The counts, in the order of the line.
_COUNTED = ("recorded", "replaced", "unchanged", "compared", "different", "missing", "lost")

#: Number of kernels with unused goldens that are named.
_NAMED = 4


def _summary(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """Yield how many goldens were recorded or compared, and the unused ones of the folder."""
    if session.goldens is None:
        return
    folder = session.goldens.store.folder
    counts = sum((Counter(record.goldens) for record in records), Counter[str]())
    texts = [f"{counts[name]} {name}" for name in _COUNTED if counts[name]]
    yield f"goldens in {folder}: {', '.join(texts) or 'none'}"
    if counts["missing"]:
        yield (
            "missing: the folder has no golden of these calls; record again on the machine of "
            "the goldens"
        )
    if counts["lost"]:
        yield (
            "lost: these calls were too large to keep, and the same seed now draws different "
            "ones; record again"
        )
    if session.goldens.mode == "replay":
        yield from _unused(session, records)


def _unused(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """Yield a line about goldens of kernels that ran, which no test used."""
    assert session.goldens is not None
    ran = {record.kernel for record in records}
    used = {name for record in records for name in record.used_goldens}
    unused: Counter[str] = Counter()
    try:
        for goldens in session.goldens.index.values():
            for golden in goldens:
                if golden.kernel in ran and golden.name not in used:
                    unused[f"{golden.kernel} {golden.check}"] += 1
    except GoldenError:
        return  # the tests fail with this error
    if unused:
        names = [f"{name} ({count})" for name, count in unused.most_common(_NAMED)]
        more = ["..."] if len(unused) > _NAMED else []
        yield f"unused: no test used {unused.total()} goldens: {', '.join(names + more)}"


@section("goldens")
def section_of_goldens(results: Results) -> Iterator[str]:
    """Yield the counts of goldens."""
    yield from _summary(results.session, results.records)
