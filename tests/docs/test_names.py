"""What pages name in backticks exists: modules, files, and what is in modules and classes.

A name is of this project if it begins with one of the packages, is a path of a Python file, or is
``module.name`` or ``Class.name`` with a module or class that both packages have once.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pallas_sim", "pytest_pallas")

#: Pages for readers; what a change of an earlier version was about is history.
PAGES = [
    path
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "CHANGELOG.md"
]

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")

#: Names of other projects, of variables and of files, like those of our modules and classes.
OTHERS = frozenset(
    ["Precision", "checks", "cross", "dma", "drawn", "errors", "memory", "report", "results"]
)

#: How paths of other projects begin: JAX's, and those of users in examples.
FOREIGN = (
    "jax/",
    "mosaic/",
    "mosaic_gpu/",
    "mykernels/",
    "src/mykernels/",
    "tests/pallas/",
    "tests/test_",
)


def modules() -> Iterator[tuple[str, Path]]:
    """The modules of both packages by their dotted names."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def names_of(body: list[ast.stmt]) -> set[str]:
    """What a module or class defines, imports and assigns."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.If | ast.Try):
            names |= names_of(node.body)
        else:
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            names |= {name.id for name in stored if isinstance(name.ctx, ast.Store)}
    return names


@functools.cache
def index() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What each module has, and what the classes of each name have."""
    of_modules: dict[str, set[str]] = {}
    of_classes: dict[str, set[str]] = {}
    for name, path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_modules[name] = names_of(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                inner = names_of(node.body)
                inner |= {
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                }
                inner |= {"*"} if node.bases else set()  # inherited names are not looked up
                of_classes.setdefault(node.name, set()).update(inner)
    return of_modules, of_classes


@functools.cache
def files() -> frozenset[str]:
    """The files of the repository, and their folders, each with a slash before it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return frozenset(f"/{parent}" for file in listed for parent in (file, *Path(file).parents))


def problem(code: str) -> str | None:
    """What is wrong with a name of this project, or None."""
    of_modules, of_classes = index()
    if re.fullmatch(r"[\w/]+/\w+\.py", code) and not code.startswith(FOREIGN):
        return None if any(file.endswith(f"/{code}") for file in files()) else "no such file"
    if code.endswith((".py", ".txt", ".json", ".tar.gz")):
        return None  # perhaps a file of the user
    if not DOTTED.fullmatch(code):
        return None
    head, _, rest = code.partition(".")
    first = rest.partition(".")[0]
    if head in PACKAGES:
        module = code
        while module and module not in of_modules:
            module = module.rpartition(".")[0]
        left = code.removeprefix(module).removeprefix(".").partition(".")[0]
        lazy = left in public(module)
        return None if not left or lazy or left in of_modules[module] else f"not in {module}"
    if head in OTHERS:
        return None
    if head in of_classes:
        return None if first in of_classes[head] or "*" in of_classes[head] else f"not in {head}"
    homes = [name for name in of_modules if name.rpartition(".")[2] == head]
    if homes and not any(first in of_modules[home] for home in homes):
        inside = any(f"{home}.{first}" in of_modules for home in homes)
        return None if inside else f"not in {', '.join(homes)}"
    return None


@functools.cache
def public(module: str) -> frozenset[str]:
    """The lazily imported names of a package."""
    if module not in PACKAGES:
        return frozenset()
    import importlib

    return frozenset(importlib.import_module(module).__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_backticks_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    problems = {code: why for code in set(CODE.findall(text)) if (why := problem(code))}
    assert not problems


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("pytest_pallas.no_such_name", True),
        ("pytest_pallas.KernelSpec", False),
        ("pallas_sim.rules.no_such_module", True),
        ("KernelSpec.no_such_field", False),  # it has bases
        ("RunSettings.no_such_field", True),
        ("registry.no_such_function", True),
        ("judge/no_such_file.py", True),
        ("judge/oracle.py", False),
        ("jax.export", False),
    ],
)
def test_a_name_that_does_not_exist_is_seen(code, wrong):
    assert (problem(code) is not None) == wrong
