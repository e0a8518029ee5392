"""Sections of the report, one module for each subject.

A module of this folder declares its sections of the terminal by ``@section``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_pallas.report.section import Section

#: The order in the terminal, by name. Sections that are not here come last.
_ORDER = (
    *("results", "footnotes", "not applicable", "inputs", "distinct", "untried inputs"),
    *("compilers", "mutants", "mutation score", "costs", "goldens", "fleet"),
)


@functools.cache
def declared_sections() -> tuple[Section, ...]:
    """The sections of this package, in order."""
    from pytest_pallas.report.section import declared_in

    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    ]
    found = [section for module in modules for section in declared_in(module)]
    places = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(found, key=lambda section: places.get(section.name, len(places))))


__all__ = ["declared_sections"]
