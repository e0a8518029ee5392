"""Sections of the terminal's report: each is declared in the module that makes its lines."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest_pallas
from pytest_pallas.report.section import _ORDER, MODULES, Results, declared_sections, section


def test_every_module_with_a_declaration_is_found():
    package = Path(pytest_pallas.__file__).parent
    declaring = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        for decorator in getattr(node, "decorator_list", ())
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "section"
    }
    found = {each.lines.__module__.partition(".")[2] for each in declared_sections()}
    assert found == declaring == set(MODULES)


def test_the_order_names_every_section_once():
    assert tuple(each.name for each in declared_sections()) == _ORDER


def test_what_is_not_quiet_is_left_out_with_q():
    @section("loud", quiet=False)
    def loud(results):
        yield str(results.verbosity)

    assert list(loud.shown(Results(session=None, records=(), verbosity=0))) == ["0"]
    assert list(loud.shown(Results(session=None, records=(), verbosity=-1))) == []
