"""ARCHITECTURE.md shows the rooms that there are: the modules and folders of both packages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("pallas_sim", "pytest_pallas")
TREE = re.search(r"## Rooms\n.*?```\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)

#: A name of the tree: a module, or a folder.
NAME = re.compile(r"\w+(?:\.py|/)(?=\s|$)")


def shown() -> dict[str, set[str]]:
    """The names below each package of the tree."""
    assert TREE is not None
    names: dict[str, set[str]] = {}
    for line in TREE[1].splitlines():
        if not line.startswith(" "):
            package = line.partition("/")[0]
            names[package] = set()
        else:
            names[package] |= set(NAME.findall(line))
    return names


def there(package: str) -> set[str]:
    """The modules and folders of a package, without those that begin with ``_``."""
    inside = list((ROOT / package).iterdir())
    names = {path.name for path in inside if path.is_file()}
    names |= {f"{path.name}/" for path in inside if (path / "__init__.py").exists()}
    return {name for name in names if re.fullmatch(r"[a-z]\w*(\.py|/)", name)}


def test_the_tree_shows_all_rooms_and_no_others():
    assert shown() == {package: there(package) for package in PACKAGES}


def test_a_folder_has_at_least_four_modules():
    folders = [path.parent for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")]
    assert [folder for folder in folders if len(list(folder.glob("*.py"))) < 5] == []
