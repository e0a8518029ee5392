"""The blocks that the programs of a grid read and write, for the picture of the static analysis."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.analysis.grid import Analysis, GridFinding
from pytest_pallas.analysis.grid.model import GridCall, GridWindow

#: Number of findings whose operand is drawn.
_OPERANDS = 3

#: Number of programs of a grid that are drawn.
PROGRAMS = 256


def grids_of(analysis: Analysis) -> list[dict[str, Any]]:
    """The operands of findings, each with the blocks of its programs."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for finding in analysis.findings:
        for call in analysis.calls:
            for window in call.windows:
                key = call.call.name, window.name
                known = window.starts is not None and not window.whole and window.shape
                if known and key == (finding.kernel, finding.operand):
                    _say(found.setdefault(key, _drawn(call, window)), finding)
    return list(found.values())[:_OPERANDS]


def _say(drawn: dict[str, Any], finding: GridFinding) -> None:
    text = {"kind": finding.kind, "severity": finding.severity, "message": finding.message}
    if text not in drawn["findings"] and len(drawn["findings"]) < _OPERANDS:
        drawn["findings"].append(text)
    for program in finding.programs:
        if list(program) not in drawn["shown"]:
            drawn["shown"].append([int(i) for i in program])


def _drawn(call: GridCall, window: GridWindow) -> dict[str, Any]:
    """An operand, with the rows and columns of the blocks of its first programs."""
    assert window.starts is not None
    lengths = np.broadcast_to(window.lengths, window.starts.shape)
    count = min(window.starts.shape[1], PROGRAMS)
    programs = [
        [
            list(call.point(number)),
            [int(n) for n in window.starts[:, number]],
            [int(n) for n in lengths[:, number]],
        ]
        for number in range(count)
    ]
    return {
        "kernel": call.call.name,
        "source": call.call.source,
        "operand": window.name,
        "output": window.output,
        "shape": list(window.shape),
        "grid": list(call.grid),
        "programs": programs,
        "count": int(window.starts.shape[1]),
        "findings": [],
        "shown": [],
    }
