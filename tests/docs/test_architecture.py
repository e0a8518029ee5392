"""ARCHITECTURE.md and docs/internals.md name packages and modules that exist, and all packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_pallas"


def _packages(text):
    """The first column of the table of packages."""
    table = text.partition("## Packages")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_all_packages_are_listed_and_no_others():
    listed = _packages((ROOT / "ARCHITECTURE.md").read_text())
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert listed == {name for name in there if not name.startswith("_")}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/internals.md"])
def test_all_modules_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", text))
    assert len(named) > 5
    there = [f"/{path.relative_to(ROOT)}" for path in PACKAGE.rglob("*") if "__py" not in path.name]
    there += [f"/{path.name}" for path in (ROOT / "tests").iterdir()]
    there += [f"/{path.name}" for path in ROOT.iterdir()]
    assert [name for name in sorted(named) if not _found(name, there)] == []


def _found(name, there):
    return any(path.endswith(f"/{name.rstrip('/')}") for path in there)
