"""What the analysis of a grid has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        compiler for the chip that was asked about would refuse it, or it is wrong only if what
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
