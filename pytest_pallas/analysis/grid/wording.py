"""Findings about windows, and programs in words."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_pallas.analysis.grid.findings import GridFinding, Kind, Severity
from pytest_pallas.analysis.grid.model import GridCall, Window
from pytest_pallas.analysis.grid.scalars import Points

_SHOWN = 3


def found(
    call: GridCall,
    window: Window,
    kind: Kind,
    severity: Severity,
    at: Sequence[int] | Points,
    *words: str,
) -> GridFinding:
    """A finding about a window; ``words`` are the message and the remedy."""
    message, remedy = words
    return GridFinding(
        kind=kind,
        severity=severity,
        kernel=call.call.name,
        source=call.call.source,
        operand=window.name,
        programs=tuple(call.point(int(i)) for i in at),
        message=message,
        remedy=remedy,
    )


def points(call: GridCall, at: Sequence[int] | Points) -> str:
    """Programs in words: a few of them, and how many there are."""
    some = ", ".join(str(call.point(int(i))) for i in at[:_SHOWN])
    more = f" and {len(at) - _SHOWN} more" if len(at) > _SHOWN else ""
    return f"program{'s' if len(at) > 1 else ''} {some}{more}"
