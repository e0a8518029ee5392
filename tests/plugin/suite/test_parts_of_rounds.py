"""Rounds of fuzzing in parts, in any order, are reported like those of one process."""

from __future__ import annotations

import shutil
import textwrap
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


#: Wrong for few draws, so that a later round finds it.
SELDOM = """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def _body(x_ref, y_ref, o_ref):
        off = jnp.where(jnp.sum(x_ref[...]) > LIMIT, 1.0, 0.0)
        o_ref[...] = x_ref[...] + y_ref[...] + off

    def seldom(x, y):
        return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)
"""


def seldom(project: Any, limit: float) -> None:
    project.write(seldom=f"LIMIT = {limit}\n" + textwrap.dedent(SELDOM))
    project.specs(f'name="seldom", kernel=seldom, {WIDE}')
    path = project.path / "specs.py"
    path.write_text("from seldom import seldom\n" + path.read_text())


@pytest.mark.parametrize("division", DIVISIONS)
def test_the_first_round_that_fails_gives_the_failure(project, monkeypatch, division):
    seldom(project, 90.0)
    args = ("--pallas-checks=forward", "--pallas-fuzz-rounds=6")
    [record] = both(project, monkeypatch, division, *args)
    assert record["outcome"] == "failed"
    assert record["examples"] > 40
    assert record["pictures"]["examples"]
