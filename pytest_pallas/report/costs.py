"""``--pallas-cost`` at the end of a session: write what was recorded, say what was compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_pallas.compilers import costs
from pytest_pallas.compilers.report import from_json
from pytest_pallas.record import Record
from pytest_pallas.session import Session


def settle(session: Session, records: Iterable[Record]) -> str:
    """Write the costs file, or count what it lacks; the text says which.

    Raises:
      OptionError: the file holds something else.
      OSError: the file cannot be written.
    """
    entries = list(_entries(records))
    path = session.options.cost_file
    if not entries:
        return (
            f"--pallas-cost={session.options.cost}: nothing was compiled; choose a compiling "
            "backend, such as --pallas-backend=tpu-compile:v6e"
        )
    if session.options.cost == "record":
        count = costs.save(session.cost_file, entries)
        return f"costs of {count} programs recorded in {path}"
    assert session.costs is not None
    unknown = [entry for entry in entries if entry.key not in session.costs.entries]
    text = f"costs of {len(entries) - len(unknown)} programs compared with {path}"
    if unknown:
        names = ", ".join(dict.fromkeys(f"{e.kernel} ({e.target})" for e in unknown))
        text += f"; not recorded there: {len(unknown)}, of {names}; --pallas-cost=record adds them"
    return text


def _entries(records: Iterable[Record]) -> Iterator[costs.Entry]:
    """The costs of everything that compiled; of a spec with typical calls, those only."""
    for record in records:
        reports = [from_json(plain) for plain in record.compiled]
        typical = [report for report in reports if report.typical]
        for report in typical or reports:
            if report.status == "compiled":
                yield costs.entry(record.kernel, record.check, report)
