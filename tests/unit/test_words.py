"""Names in the code: one class a name, file names that say which, and nouns for variables."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pallas_sim", "pytest_pallas")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

#: Names that say nothing about the value.
VAGUE = {"found", "each", "words", "place", "told", "asked", "said", "settle", "words_of"}

#: Fields and parameters that users see.
PUBLIC = {
    "pallas_sim/inspector.py": {"place"},
    "pytest_pallas/mutate/item.py": {"place"},  # overrides a method of ``SpecItem``
    "pytest_pallas/mutate/model.py": {"words", "place"},
    "pytest_pallas/pytest_session.py": {"place"},
    "pytest_pallas/record.py": {"words", "found"},
    "pytest_pallas/results.py": {"place"},
    "pytest_pallas/run/rounds.py": {"words"},
}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """The file of each node of the packages, below ``ROOT``, and the node."""
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        yield from ((name, node) for node in ast.walk(ast.parse(path.read_text())))


def defined(node: ast.AST) -> str | None:
    """The name that a node gives to a value, a parameter or a function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef) else None


def test_no_class_name_is_used_twice() -> None:
    count = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, times in count.items() if times > 1] == []


def test_no_file_name_is_used_five_times() -> None:
    count = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert [name for name, times in count.items() if times > 4] == []


def test_names_are_nouns_of_what_they_hold() -> None:
    vague: dict[str, set[str]] = {}
    for file, node in nodes():
        name = (defined(node) or "").lstrip("_")
        if name in VAGUE:
            vague.setdefault(file, set()).add(name)
    assert vague == PUBLIC


@pytest.mark.parametrize(("source", "name"), [("each = 1", "each"), ("def f(found): 0", "found")])
def test_a_vague_name_is_seen(source: str, name: str) -> None:
    assert name in {defined(node) for node in ast.walk(ast.parse(source))}
