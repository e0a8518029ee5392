"""Findings of the analysis of a grid, and its report as text."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pallas_sim.traces import space_of
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.model import GridCall, GridWindow
from pytest_pallas.grid.scalars import Points

Severity = Literal["error", "warning"]

#: Kinds of findings; see docs/grid.md.
Kind = Literal[
    "never-written",
    "parallel-write",
    "revisited",
    "out-of-range",
    "overhang",
    "overflow",
    "copies",
    "alias",
    "vmem",
    "smem",
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
      operand: the operand, by the name of the body's parameter; of the kind ``"overflow"`` the
        line.
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
        """Write the finding in two or three lines."""
        source = f" at {self.source}" if self.source else ""
        head = f"{self.severity}: {self.kind}: {self.kernel}{source}, {self.operand}"
        return f"{head}\n  {self.message}\n  {self.remedy}"


_SHOWN = 3


def finding_of(
    call: GridCall,
    window: GridWindow,
    kind: Kind,
    severity: Severity,
    programs: Iterable[int | tuple[int, ...]],
    message: str,
    remedy: str,
) -> GridFinding:
    """Make a finding about a window; ``programs`` are numbers or grid points."""
    return GridFinding(
        kind=kind,
        severity=severity,
        kernel=call.call.name,
        source=call.call.source,
        operand=window.name,
        programs=tuple(p if isinstance(p, tuple) else call.point(int(p)) for p in programs),
        message=message,
        remedy=remedy,
    )


def points(call: GridCall, at: Sequence[int] | Points) -> str:
    """Name a few programs, and say how many more there are."""
    some = ", ".join(str(call.point(int(i))) for i in at[:_SHOWN])
    more = f" and {len(at) - _SHOWN} more" if len(at) > _SHOWN else ""
    return f"program{'s' if len(at) > 1 else ''} {some}{more}"


# The report: grids and blocks as text.


_WIDTH = 100

#: Programs that are shown of a large grid: the first of them, and the last.
_MOST_SHOWN = 12


def report(
    calls: Sequence[GridCall], others: Sequence[KernelCall], findings: Sequence[GridFinding]
) -> str:
    """Write every kernel with its grid, blocks and findings."""
    parts = ["\n".join(_call(call)) for call in calls]
    parts += [f"{_head(call)}\n  no blocks: the body copies what it needs" for call in others] or (
        [] if parts else ["no Pallas kernel"]
    )
    if calls or findings:
        parts.append("\n".join(_findings(findings)))
    return "\n\n".join(parts)


def _head(call: KernelCall) -> str:
    path = f", in {' > '.join(call.path)}" if call.path else ""
    return _cut(_near(f"{call.name}  {call.source}{path}".rstrip()))


def _near(text: str) -> str:
    """Name files below the current folder from there."""
    return text.replace(f"{Path.cwd()}/", "")


def _cut(line: str) -> str:
    """Shorten a line in the middle, because the end of a path matters most."""
    if len(line) <= _WIDTH:
        return line
    return line[: _WIDTH // 3] + " ... " + line[-(_WIDTH - _WIDTH // 3 - 5) :]


def _call(call: GridCall) -> Iterator[str]:
    yield _head(call.call)
    yield from _wrapped("grid      ", _grid(call))
    for window in call.windows:
        yield from _wrapped(f"{window.name:<9} ", _window(call, window))
    for name, aval in call.facts.scratch:
        scratch = f"{getattr(aval, 'dtype', '')}{list(getattr(aval, 'shape', ()))}"
        yield from _wrapped(f"{name:<9} ", f"scratch {scratch} in {space_of(aval)}")
    yield from _table(call)


def _grid(call: GridCall) -> str:
    if not call.grid:
        return "none: one program"
    sizes = ", ".join("?" if n is None else str(n) for n in call.grid)
    count = "?" if call.programs is None else f"{call.programs:,}"
    return f"({sizes}) = {count} programs; ({', '.join(call.semantics)}) on {call.platform.upper()}"


def _window(call: GridCall, window: GridWindow) -> str:
    does = "writes" if window.output else "reads"
    array = f"{window.facts.dtype}{list(window.shape)}"
    alias = f"; shares memory with {window.alias}" if window.alias else ""
    if window.whole:
        return f"{array} in {window.facts.space.upper()}, not in blocks{alias}"
    if window.starts is None:
        return f"{does} {array} in blocks {_blocks(window)}; {window.unknown}{alias}"
    return f"{does} {array} in blocks {_blocks(window)}: {_coverage(call, window)}{alias}"


def _blocks(window: GridWindow) -> str:
    parts = [
        "squeezed" if kind == "Squeezed" else f"{size}" + ("" if kind == "Blocked" else f" {kind}")
        for kind, size, _ in window.facts.dims
    ]
    return f"({', '.join(parts)})"


def _coverage(call: GridCall, window: GridWindow) -> str:
    """Say how many blocks there are, and how often they are accessed."""
    blocks, which = window.distinct
    if not which.size:
        return "no program runs"
    visits = int((which[1:] != which[:-1]).sum()) + 1
    some = "" if call.complete else f" by the first {which.size:,} programs"
    verb = "written" if window.output else "fetched"
    of = f"of {math.prod(window.counts):,}" if window.uniform and window.shape else "different"
    return f"{blocks.shape[1]:,} {of}, {verb} {visits:,} times{some}"


def _table(call: GridCall) -> Iterator[str]:
    """Draw tables of programs by operands, as many operands as fit beside each other."""
    shown = [w for w in call.windows if not w.whole and w.starts is not None]
    count = call.points.shape[1]
    if not shown or not count or not call.grid:
        return
    rows = list(range(count)) if count <= _MOST_SHOWN + 1 else [*range(_MOST_SHOWN - 1), count - 1]
    columns = [
        [window.name + (" (out)" if window.output else ""), *(window.region(i) for i in rows)]
        for window in shown
    ]
    first = ["program", *(str(call.point(i)) for i in rows)]
    while columns:
        block = [first]
        while columns and (len(block) == 1 or 2 + sum(map(_wide, [*block, columns[0]])) <= _WIDTH):
            block.append(columns.pop(0))
        widths = [_wide(column) for column in block]
        yield ""
        for line, cells in enumerate(zip(*block, strict=True)):
            if line == len(rows) and len(rows) < count:
                yield f"  ... {count - len(rows):,} more"
            text = "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            yield _cut(f"  {text}".rstrip())


def _wide(column: Sequence[str]) -> int:
    return max(map(len, column)) + 2


def _findings(findings: Sequence[GridFinding]) -> Iterator[str]:
    if not findings:
        yield "no findings"
        return
    yield f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    for finding in findings:
        head, *rest = _near(str(finding)).splitlines()
        yield ""
        yield from _wrap(head, subsequent_indent="  ", break_long_words=False)
        for line in rest:
            yield from _wrap(line.strip(), initial_indent="  ", subsequent_indent="  ")


def _wrapped(title: str, text: str) -> Iterator[str]:
    indent = " " * (len(title) + 2)
    yield from _wrap(
        text, initial_indent=f"  {title}", subsequent_indent=indent, break_long_words=False
    )


_wrap = functools.partial(textwrap.wrap, width=_WIDTH, break_on_hyphens=False)
