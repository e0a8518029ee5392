"""Rounds of fuzzing in parts, in any order, are reported like those of one process."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

import pytest

from pytest_pallas.run import fuzzing

#: The plugin that runs the parts of a test.
IN_PARTS = ("-p", "pallas_test_support.parts_controller")

ONE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=4")

WIDE = 'inputs=pst.arrays("m n, m n", dtype="float32", around=[8, 16, 32])'

#: Fields that are times, or that name the options of a run.
OF_ONE_RUN = ("seconds", "kernel_seconds", "replay")


#: Sizes of rounds: draws, and calls of each.
ROUND, EACH = 4, 2

#: The same in processes for isolated tests.
CONFTEST = f"""
    from pytest_pallas.run import fuzzing

    fuzzing.ROUND, fuzzing.EACH = {ROUND}, {EACH}
"""


@pytest.fixture(autouse=True)
def _small_rounds(monkeypatch):
    monkeypatch.setattr(fuzzing, "ROUND", ROUND)
    monkeypatch.setattr(fuzzing, "EACH", EACH)


def without_the_run(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name not in OF_ONE_RUN}
        for record in records
    ]


def both(project: Any, monkeypatch: Any, divisions: str, *args: str) -> list[dict[str, Any]]:
    """The records of a run, which are those of runs in parts, too."""
    whole = without_the_run(project.records(*ONE, *args))
    for division in divisions.split():
        shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)  # the failing examples
        monkeypatch.setenv("PARTS", division)
        parts = without_the_run(project.records(*ONE, *args, *IN_PARTS))
        assert parts == whole, division
    return whole


def test_parts_have_the_record_of_the_whole(project, monkeypatch):
    project.specs(f'name="add", kernel=add, {WIDE}')
    checks = "--pallas-checks=forward,oracle-strength"
    records = both(project, monkeypatch, "1:0 2:1 100:3", checks, "--pallas-fuzz-rounds=3")
    assert [record["outcome"] for record in records] == ["passed"] * 2
    assert records[0]["examples"] > ROUND * EACH


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


def test_the_first_round_that_fails_gives_the_failure(project, monkeypatch):
    seldom(project, 90.0)
    project.write(conftest=CONFTEST)
    args = ("--pallas-checks=forward", "--pallas-fuzz-rounds=6")
    [record] = both(project, monkeypatch, "2:1 1:4:worker", *args)
    assert record["outcome"] == "failed"
    assert record["examples"] > ROUND * EACH  # so in a later one
    assert record["pictures"]["examples"]


FEW = "st.integers(1, 5).map(lambda k: (np.full((8, 128), float(k), np.float32),) * 2)"


@pytest.mark.parametrize("division", ["2:1"])
def test_rounds_end_where_nothing_new_is_left(project, monkeypatch, division):
    project.specs(f'name="add", kernel=add, inputs={FEW}')
    path = project.path / "specs.py"
    path.write_text("from hypothesis import strategies as st\n" + path.read_text())
    args = ("--pallas-checks=forward", "--pallas-fuzz-rounds=12")
    [record] = both(project, monkeypatch, division, *args)
    assert (record["outcome"], record["examples"]) == ("passed", 5)


#: ``NARROW`` applies to narrow arrays only, and needs one of 64 columns to pass.
NARROW = """
    from pytest_pallas import Check

    def _run(context):
        from pytest_pallas.checks.context import CheckResult
        from pytest_pallas import NotApplicableError

        width = context.arguments.args[0].shape[1]
        if width > 200:
            raise NotApplicableError(f"{width} columns are too many")
        return CheckResult(comparisons=[], evidence=width, notes=(f"{width} columns",))

    def _conclude(evidence):
        return None if 64 in evidence else f"never 64 columns in {len(evidence)} examples"

    def pytest_pallas_checks(config):
        return [Check(name="narrow", asks="is it?", run=_run, conclude=_conclude)]
"""


@pytest.mark.parametrize("division", ["1:0"])
@pytest.mark.parametrize(
    ("widths", "outcome"),
    [((64, 128, 256), "passed"), ((100, 130, 256, 300), "failed"), ((256, 300), "skipped")],
)
def test_a_check_concludes_from_the_examples_of_all_parts(
    project, monkeypatch, division, widths, outcome
):
    project.write(conftest=NARROW)
    project.specs(
        'name="add", kernel=add, checks=("narrow",), inputs=pst.arrays("m n, m n", '
        f'dtype="float32", values="normal", dims={{"m": 8, "n": {list(widths)}}})'
    )
    [record] = both(project, monkeypatch, division, "--pallas-fuzz-rounds=3")
    assert record["outcome"] == outcome
    if outcome == "failed":
        assert f"never 64 columns in {record['examples']} examples" in record["message"]


@pytest.mark.parametrize(("division", "rounds"), [("1:7", 6)])
def test_rounds_until_a_time_count_up_to_the_first_gap(project, monkeypatch, division, rounds):
    """What was run is what so many rounds are."""
    project.specs(f'name="add", kernel=add, {WIDE}')
    args = (*ONE, "--pallas-checks=forward")
    monkeypatch.setenv("PARTS", division)
    parts = project.records(*args, "--pallas-fuzz-time=1", *IN_PARTS)
    whole = project.records(*args, f"--pallas-fuzz-rounds={rounds}")
    assert without_the_run(parts) == without_the_run(whole)


def test_an_expected_failure_is_not_divided(project, monkeypatch):
    expected = "xfail={'tpu-sim': ExpectedFailure(reason='off', jax='0.12')}"
    project.specs(f'name="add_off", kernel=add_off, {expected}')
    args = ("--pallas-checks=forward", "--pallas-fuzz-rounds=9")
    [record] = both(project, monkeypatch, "1:0", *args)
    assert record["outcome"] == "xfailed"
    assert record["examples"] <= 4


def test_one_round_is_a_usual_run(project):
    project.specs(f'name="add", kernel=add, {WIDE}')
    usual = project.records(*ONE, "--pallas-checks=forward")
    rounds = project.records(*ONE, "--pallas-checks=forward", "--pallas-fuzz-rounds=1")
    assert without_the_run(usual) == without_the_run(rounds)


def test_rounds_end_with_the_time(project, clock):
    project.specs(f'name="add", kernel=add, {WIDE}')
    args = ("--pallas-checks=forward", "--pallas-fuzz-rounds=100000", "--pallas-fuzz-time=1")
    [record] = project.records(*ONE, *args)
    assert record["outcome"] == "passed"
    assert record["examples"] > 4
    assert 1.0 <= clock() < 1.5
