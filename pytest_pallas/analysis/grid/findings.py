"""What the analysis of a grid has to say, and how: findings, windows and programs in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_pallas.analysis.grid.bodies.scalars import Points
from pytest_pallas.analysis.grid.model import GridCall, GridWindow

Severity = Literal["error", "warning"]

#: What is wrong with a grid, by name: see docs/grid.md.
Kind = Literal[
    "never-written",
    "parallel-write",
    "revisited",
    "out-of-range",
    "overhang",
    "alias",
    "vmem",
    "tile",
]


@dataclass(frozen=True)
class GridFinding:
    """Something that is wrong with the grid or the blocks of one kernel.

    Attributes:
      kind: what, by name.
      severity: ``"error"``: wrong on the kernel's platform, whatever the chip. ``"warning"``: a
        compiler for the chip in question would reject it, or it is wrong only if what
        follows uses it.
      kernel: name of the kernel.
      source: ``file:line`` of its call, or "".
      operand: the operand, by the name of the body's parameter.
      programs: grid points that show it, a few.
      message: what is wrong.
      remedy: what to do.
    """

    kind: Kind
    severity: Severity
    kernel: str
    source: str
    operand: str
    programs: tuple[tuple[int, ...], ...]
    message: str
    remedy: str

    def __str__(self) -> str:
        """In two or three lines."""
        place = f" at {self.source}" if self.source else ""
        head = f"{self.severity}: {self.kind}: {self.kernel}{place}, {self.operand}"
        return f"{head}\n  {self.message}\n  {self.remedy}"


_SHOWN = 3


def found(
    call: GridCall,
    window: GridWindow,
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
