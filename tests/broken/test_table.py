"""docs/broken.md: wrong kernels are caught as its table says, whatever the seed; right ones pass.

``scripts/broken_kernels.py`` writes the table.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import table

from pytest_pallas.checks import SANITIZERS as NAMES

SAID = table.listed(table.PAGE.read_text())
WRONG = [name for name in table.specs() if not table.is_right(name)]


def test_every_wrong_kernel_is_listed() -> None:
    assert sorted(SAID) == sorted(WRONG)
    assert all(SAID.values())


def test_what_a_chip_answered_is_listed() -> None:
    lines = table.PAGE.read_text().splitlines()
    right = {name for name in table.ON_H200 if table.is_right(name)}
    assert {table.ON_H200[name] for name in right} == {"right"}
    for name, answer in table.ON_H200.items() - {(name, "right") for name in right}:
        assert "gpu-sim" in SAID[name]
        (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
        assert row.endswith(f" | {answer} |")


def test_there_are_many_of_every_kind() -> None:
    assert len(WRONG) >= 45
    families = [table.family_of(spec) for name, spec in table.specs().items() if name in WRONG]
    assert len({*families}) >= 12


@pytest.mark.parametrize(
    "seed",
    [table.SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in table.SEEDS[1:])],
)
def test_wrong_ones_are_caught_as_listed(tmp_path: Path, seed: int) -> None:
    """Each third of the kernels with another seed; the script asks about all with each."""
    names = sorted(SAID)[seed :: len(table.SEEDS)]
    checks = {name: sorted({*itertools.chain(*SAID[name].values())}) for name in names}
    found = table.caught(table.ask(tmp_path / "wrong", checks, seed=seed))
    examples = {(c.kernel, c.backend, c.check): c.examples for c in found}
    listed = {
        (name, backend, check): number
        for name in names
        for backend, caught in SAID[name].items()
        for check, number in caught.items()
    }
    if seed != table.SEEDS[0]:  # the table has the numbers of the first one
        examples, listed = dict.fromkeys(examples), dict.fromkeys(listed)
    assert {key: examples.get(key, "passed") for key in listed} == listed


def test_nothing_is_said_of_right_ones(tmp_path: Path) -> None:
    """By sanitizers, with one example; the script asks all checks about as many as a user's run."""
    checks = {name: ("grid", *NAMES) for name in table.specs() if table.is_right(name)}
    assert len(checks) > 30
    records = table.ask(tmp_path / "right", checks, "--pallas-max-examples=1")
    assert table.caught(records) == []
