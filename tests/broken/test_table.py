"""docs/broken.md: wrong kernels are caught as its table says, whatever the seed; right ones pass.

``scripts/broken_kernels.py`` writes the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import table
from table import Caught

SAID = table.listed(table.PAGE.read_text())
WRONG = [name for name in table.specs() if not table.is_right(name)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Sequence[Caught]]:
    """What is caught of all that is listed, by seed."""
    folder = tmp_path_factory.mktemp("table")
    checks = {
        name: sorted({check for of_backend in caught.values() for check in of_backend})
        for name, caught in SAID.items()
    }
    return {
        seed: table.caught(table.ask(folder / str(seed), checks, seed=seed)) for seed in table.SEEDS
    }


def test_every_wrong_kernel_is_listed() -> None:
    assert sorted(SAID) == sorted(WRONG)
    assert all(SAID.values())


def test_there_are_many_of_every_kind() -> None:
    assert len(WRONG) >= 45
    families = [table.family_of(spec) for name, spec in table.specs().items() if name in WRONG]
    assert len({*families}) >= 12


@pytest.mark.parametrize("kernel", WRONG)
def test_is_caught_as_listed(found: Mapping[int, Sequence[Caught]], kernel: str) -> None:
    listed = {
        (backend, check, examples)
        for backend, checks in SAID[kernel].items()
        for check, examples in checks.items()
    }
    first = {(c.backend, c.check, c.examples) for c in found[table.SEEDS[0]] if c.kernel == kernel}
    assert listed <= first
    for seed in table.SEEDS[1:]:
        again = {(c.backend, c.check) for c in found[seed] if c.kernel == kernel}
        assert {(backend, check) for backend, check, _ in listed} <= again, f"seed {seed}"


def test_nothing_is_said_of_right_ones(tmp_path: Path) -> None:
    specs = table.specs()
    checks = {name: table.checks_of(spec) for name, spec in specs.items() if table.is_right(name)}
    assert len(checks) > 30
    assert table.caught(table.ask(tmp_path / "right", checks)) == []
