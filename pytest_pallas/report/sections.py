"""The sections of the terminal, which the modules of features declare by ``@section``."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_pallas.report.section import Section

#: The modules that declare sections.
MODULES = (
    "report.terminal",
    "report.inputs",
    "report.coverage",
    "report.orders",
    "compile.report",
    "mutate.report",
    "replay.report",
    "distribute.fleet.report",
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
    from pytest_pallas.report.section import declared_in

    modules = [importlib.import_module(f"pytest_pallas.{name}") for name in MODULES]
    sections = [section for module in modules for section in declared_in(module)]
    order = {name: position for position, name in enumerate(_ORDER)}
    return tuple(sorted(sections, key=lambda section: order.get(section.name, len(order))))


__all__ = ["declared_sections"]
