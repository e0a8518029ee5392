"""Reports of pytest that other processes and machines have made, and those made in their place.

``PlainReport`` is the schema of a serialized report in a message. The other functions are what
merging needs, be it of the parts of an item (``parts``), of the processes of a gang
(``gang.merging``), or of an earlier run (``resume``): reports by phase, new reports, and the
records on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Required, TypedDict

import pytest

from pallas_sim.findings import Text
from pytest_pallas.compat.testing import can_be_shown
from pytest_pallas.decoding import Accepts, Checked, DataError, Seconds, decode
from pytest_pallas.pytest_session import PART_RESULT, RECORDS
from pytest_pallas.record import Record, to_json
from pytest_pallas.results import Location


def checked_result(plain: Any) -> Mapping[str, Any]:
    """Check the result of a part of an item as plain values, and return it.

    Raises:
      DataError: it is no such result.
    """
    # late: they import JAX, which the reporting process of a gang does not need
    if isinstance(plain, dict) and plain.get("kind") == "mutants":
        from pytest_pallas.mutate.item import MutantsPart

        decode(MutantsPart, plain)
    else:
        from pytest_pallas.run.rounds import RoundsPart

        decode(RoundsPart, plain)
    return plain


class _ReportFields(TypedDict, total=False):
    """What a report of pytest has, and what the plugin adds, as far as code reads it."""

    nodeid: Required[str]
    outcome: Required[Literal["passed", "failed", "skipped", "rerun"]]
    when: Literal["setup", "call", "teardown", "collect", "???"] | None
    location: Location
    keywords: dict[str, Any]
    duration: Seconds
    sections: list[tuple[str, Text]]
    user_properties: list[tuple[str, Any]]
    wasxfail: Text
    pallas_records: list[Annotated[dict[str, Any], Checked(lambda: Record)]]
    pallas_part: Annotated[Any, Accepts(checked_result)]
    pallas_raised: tuple[str, str, str, bool]
    pallas_status: str
    pallas_because_of: list[int]


def checked_report(plain: Any) -> dict[str, Any]:
    """Check a serialized report of pytest from a file or another machine, and return it.

    Raises:
      DataError: it is no such report, or pytest cannot print it.
    """
    report: dict[str, Any] = decode(dict[str, Any], plain)
    known = _ReportFields.__annotations__
    own = {name: value for name, value in report.items() if name in known}
    decode(_ReportFields, own)
    kind = pytest.CollectReport if report.get("when") == "collect" else pytest.TestReport
    for name in report:
        # pytest makes attributes of what it does not know
        if name not in known and (hasattr(kind, name) or name == "node"):
            raise DataError(f"has the field {name!r}, which no report of pytest has")
    if not can_be_shown(report):
        raise DataError("is no report of pytest")
    return report


#: A serialized report of pytest, in a message.
PlainReport = Annotated[Any, Accepts(checked_report)]


def new_report(
    nodeid: str,
    location: Location,
    when: Any,
    outcome: Any,
    longrepr: Any = None,
    *,
    sections: Sequence[tuple[str, str]] = (),
    seconds: float = 0.0,
) -> pytest.TestReport:
    """Make a report of a phase that nothing ran in this process."""
    return pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords={},
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=list(sections),
        duration=seconds,
    )


def put_records(report: pytest.TestReport, records: Iterable[Record]) -> None:
    """Put records on a report, in place of those that it has."""
    setattr(report, RECORDS, [to_json(record) for record in records])


def first_attribute(reports: Iterable[pytest.TestReport], name: str, otherwise: Any) -> Any:
    """Return an attribute of the plugin, of the first report that has it."""
    return next((getattr(report, name) for report in reports if hasattr(report, name)), otherwise)


def take_part_result(reports: Iterable[pytest.TestReport]) -> Mapping[str, Any] | None:
    """Remove the result of a part from its reports, and return it; None if there is none."""
    return next(
        (vars(report).pop(PART_RESULT) for report in reports if hasattr(report, PART_RESULT)), None
    )
