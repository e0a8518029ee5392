"""Write the table of docs/broken.md: which check catches which wrong kernel, on which backend.

    uv run python scripts/broken_kernels.py            # all of them
    uv run python scripts/broken_kernels.py NAME ...   # these; the rows of the others stay

Asks every wrong kernel every check with the first seed, and again those that failed, with the other
seeds: the table names what failed with each. Of right kernels nothing may be said. All of them take
half an hour; a test asks about what is listed.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"


def main(*names: str) -> None:
    """Ask, and write the page."""
    sys.path += [str(TESTS / "broken"), str(TESTS / "support")]
    import table

    specs = table.specs()
    if unknown := sorted({*names} - {*specs}):
        sys.exit(f"there is no kernel {', '.join(unknown)}")
    asked = {name: table.checks_of(specs[name]) for name in names or specs}
    right = {name: checks for name, checks in asked.items() if table.is_right(name)}
    wrong = {name: checks for name, checks in asked.items() if name not in right}
    first, *others = table.SEEDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [table.caught(table.ask(folder / "0", wrong, seed=first)) if wrong else []]
        again = table.failing(found[0])
        for seed in others if again else ():
            found.append(table.caught(table.ask(folder / str(seed), again, seed=seed)))
        told = table.caught(table.ask(folder / "right", right)) if right else []
    page = table.PAGE
    listed = table.listed(page.read_text())
    rows = [
        row
        if row.kernel in wrong
        else dataclasses.replace(row, caught=listed.get(row.kernel, row.caught))
        for row in table.rows(found)
    ]
    page.write_text(table.filled(page.read_text(), table.rendered(rows)))
    print(f"{len(rows)} kernels, {len({row.family for row in rows})} families")
    if told:
        sys.exit(f"of right kernels something is said: {told}")
    missed = [row.kernel for row in rows if not row.caught]
    if missed:
        sys.exit(f"caught by nothing, or not with every seed: {', '.join(missed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
