"""The sections of the report in the terminal, which ``@section`` declares.

A feature declares its sections in its own module, a project in ``pytest_pallas_report_sections``. A
section is a function from ``Results``, the data of a run, to lines.
"""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import NotApplicable, Record

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pytest_pallas.report.section import Section


@dataclass(frozen=True)
class Line:
    """Text in a color: a line, or several."""

    text: str
    color: Literal["yellow", "red"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The data that a section can show.

    Attributes:
      session: the session that ends.
      records: all of them.
      executed: those of checks that executed or simulated a kernel.
      compiled: those of checks that compiled one.
      not_applicable: checks that do not apply.
      costs: the result of recording or comparing costs; "" if there is none.
      below: the failures of ``--pallas-coverage-min`` and ``--pallas-mutate-min``.
      width: columns of the terminal.
      wide: columns of a wide table: more than ``width`` where the output is no terminal.
      color: whether colors may be used.
      verbosity: 1 with ``-v``, -1 with ``-q``.
    """

    session: PytestSession
    records: Sequence[Record]
    executed: Sequence[Record] = ()
    compiled: Sequence[Record] = ()
    not_applicable: Sequence[NotApplicable] = ()
    costs: str = ""
    below: Sequence[str] = ()
    width: int = 80
    wide: int = 80
    color: bool = False
    verbosity: int = 0

    @property
    def every(self) -> bool:
        """Whether to list entries instead of counting them."""
        return self.verbosity > 0


type Lines = Callable[[Results], Iterable[str | Line]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section. Projects add their own by ``pytest_pallas_report_sections``.

    Attributes:
      name: its subject.
      lines: yields the text, as lines or as texts with several lines; nothing for no section.
      quiet: whether ``-q`` shows it, too.
    """

    name: str
    lines: Lines
    quiet: bool = True

    def shown(self, results: Results) -> Iterable[str | Line]:
        """The lines that are written."""
        return self.lines(results) if self.quiet or results.verbosity >= 0 else ()


def as_text(section: Section, results: Results) -> str:
    """Join the lines of a section to one text without colors; "" for no section."""
    lines = section.shown(results)
    return "\n".join(line.text if isinstance(line, Line) else line for line in lines)


def section(name: str, *, quiet: bool = True) -> Callable[[Lines], Section]:
    """Declare that a function gives the lines of a section.

    Args:
      name: its subject.
      quiet: whether ``-q`` shows it, too.
    """

    def declare(lines: Lines) -> Section:
        return Section(name=name, lines=lines, quiet=quiet)

    return declare


def group_by[T, K: Hashable](items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, both in the order of their first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def number(many: int, noun: str) -> str:
    """Count things: ``1 check``, ``2 checks``."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def rendered(table: RenderableType, *, width: int, color: bool) -> str:
    """Render a table or lines as text of at most ``width`` columns, without trailing spaces."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=max(width, 40), force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


#: The modules that declare sections.
MODULES = (
    "report.terminal",
    "report.inputs",
    "report.coverage",
    "report.orders",
    "compile.report",
    "mutate.report",
)

#: The order in the terminal, by name. Sections that are not here come last.
_ORDER = (
    *("results", "footnotes", "not applicable", "inputs", "coverage", "orders", "distinct"),
    *("untried inputs", "unreached"),
    *("compilers", "mutants", "minimums", "costs", "goldens", "fleet"),
)


@functools.cache
def declared_sections() -> tuple[Section, ...]:
    """The sections of this package, in order."""
    modules = [importlib.import_module(f"pytest_pallas.{name}") for name in MODULES]
    sections = [
        section
        for module in modules
        for section in vars(module).values()
        if isinstance(section, Section) and section.lines.__module__ == module.__name__
    ]
    order = {name: position for position, name in enumerate(_ORDER)}
    return tuple(sorted(sections, key=lambda section: order.get(section.name, len(order))))
