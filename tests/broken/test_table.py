"""docs/broken.md: wrong kernels are caught as its table says, whatever the seed; right ones pass.

``scripts/broken_kernels.py`` writes the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import table

SAID = table.listed(table.PAGE.read_text())
WRONG = [name for name in table.specs() if not table.is_right(name)]


def test_every_wrong_kernel_is_listed() -> None:
    assert sorted(SAID) == sorted(WRONG)
    assert all(SAID.values())


def test_there_are_many_of_every_kind() -> None:
    assert len(WRONG) >= 45
    families = [table.family_of(spec) for name, spec in table.specs().items() if name in WRONG]
    assert len({*families}) >= 12


@pytest.mark.parametrize("seed", table.SEEDS)
def test_wrong_ones_are_caught_as_listed(tmp_path: Path, seed: int) -> None:
    checks = {
        name: sorted({check for of_backend in caught.values() for check in of_backend})
        for name, caught in SAID.items()
    }
    found = table.caught(table.ask(tmp_path / "wrong", checks, seed=seed))
    examples = {(c.kernel, c.backend, c.check): c.examples for c in found}
    listed = {
        (kernel, backend, check): number
        for kernel, caught in SAID.items()
        for backend, checks in caught.items()
        for check, number in checks.items()
    }
    if seed != table.SEEDS[0]:  # the table has the numbers of the first one
        examples, listed = dict.fromkeys(examples), dict.fromkeys(listed)
    assert {key: examples.get(key, "passed") for key in listed} == listed


def test_nothing_is_said_of_right_ones(tmp_path: Path) -> None:
    """With two examples; the script asks about as many as a user's run."""
    specs = table.specs()
    checks = {name: table.checks_of(spec) for name, spec in specs.items() if table.is_right(name)}
    assert len(checks) > 30
    records = table.ask(tmp_path / "right", checks, "--pallas-max-examples=2")
    assert table.caught(records) == []
