"""Rounds of fuzzing in parts, in any order, are reported like those of one process."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

ONE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=4")

WIDE = 'inputs=pst.arrays("m n, m n", dtype="float32", around=[8, 16, 32])'

#: Fields that are times.
TIMES = ("seconds", "kernel_seconds")

DIVISIONS = ["1:0", "2:1", "100:3"]


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name not in TIMES} for record in records
    ]


def both(project: Any, monkeypatch: Any, division: str, *args: str) -> list[dict[str, Any]]:
    """The records of a run, which are those of a run in parts, too."""
    whole = without_times(project.records(*ONE, *args))
    shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)  # the failing examples
    monkeypatch.setenv("PARTS", division)
    parts = without_times(project.records(*ONE, *args, "-p", "parts_controller"))
    assert parts == whole
    return whole


@pytest.mark.parametrize("division", DIVISIONS)
def test_parts_have_the_record_of_the_whole(project, monkeypatch, division):
    project.specs(f'name="add", kernel=add, {WIDE}')
    checks = "--pallas-checks=forward,oracle-strength"
    records = both(project, monkeypatch, division, checks, "--pallas-fuzz-rounds=3")
    assert [record["outcome"] for record in records] == ["passed"] * 2
    assert records[0]["examples"] > 60
