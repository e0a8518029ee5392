"""No modules import each other: neither at their top, nor in functions, nor for types only."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imports_of(package: Path) -> dict[str, set[str]]:
    """The modules of a package, each with those of the same package that it imports anywhere."""
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= inside & paths.keys() or {node.module or ""}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[name] = imported & paths.keys() - {name}
    return graph


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of a cycle, in order; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["pallas_sim", "pytest_pallas"])
def test_no_modules_import_each_other(package):
    graph = imports_of(ROOT / package)
    # Public names are imported from the package, which imports nothing itself.
    graph = {name: imported - {package} for name, imported in graph.items() if name != package}
    assert len(graph) > 50
    assert cycle_in(graph) == []


def test_lazy_imports_and_those_for_types_count(tmp_path):
    package = tmp_path / "ring"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("def f():\n    from ring.two import g\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ring import one\n"
    )
    assert set(cycle_in(imports_of(package))) == {"ring.one", "ring.two"}
