"""Write the table of docs/broken.md: which check catches which wrong kernel, on which backend.

    uv run python scripts/broken_kernels.py

Asks every wrong kernel every check with the first seed, and again those that failed, with the other
seeds: the table names what failed with each. Takes minutes; a test asks about what is listed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

BROKEN = Path(__file__).parents[1] / "tests/broken"


def main() -> None:
    """Ask, and write the page."""
    sys.path.append(str(BROKEN))
    import table

    wrong = {name: spec for name, spec in table.specs().items() if not table.is_right(name)}
    first, *others = table.SEEDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checks = {name: table.checks_of(spec) for name, spec in wrong.items()}
        found = [table.caught(table.ask(folder / "0", checks, seed=first))]
        again = table.failing(found[0])
        found += [table.caught(table.ask(folder / str(seed), again, seed=seed)) for seed in others]
    rows = table.rows(found)
    missed = [row.kernel for row in rows if not row.caught]
    if missed:
        sys.exit(f"caught by nothing, or not with every seed: {', '.join(missed)}")
    page = table.PAGE
    page.write_text(table.filled(page.read_text(), table.rendered(rows)))
    print(f"{len(rows)} kernels, {len({row.family for row in rows})} families")


if __name__ == "__main__":
    main()
