"""``pytest_pallas_checks``."""

from __future__ import annotations

import pytest

CONFTEST = """
    from pytest_pallas import Check

    def _run(trial):
        from pytest_pallas.checks.trial import Finding, run
        from pytest_pallas.errors import MismatchError

        outcome = run(trial, trial.kernel, trial.arguments.args)
        if (outcome.values < 0).any():
            raise MismatchError("negative")
        return Finding(comparisons=[], outcome=outcome, seconds=0.25)

    def _needs(spec):
        return None if spec.name.startswith("positive") else "only positive kernels promise it"

    def pytest_pallas_checks(config):
        return [Check(name="positive", asks="is it above 0?", run=_run, needs=_needs, share=0.5)]
"""


def test_specs_and_tests_of_ones_own(project):
    project.specs(
        'name="positive_add", kernel=add, checks=("positive", "forward"), '
        'inputs=pst.arrays("n, n", dtype="uint8", dims={"n": [128, 256, 512]}, '
        'values="integers")',
        'name="other", kernel=add',
    )
    project.write(
        conftest=CONFTEST,
        test_own="""
        import numpy as np
        from kernels import *

        def test_negative(pallas_check):
            x = -np.ones((8, 128), np.float32)
            pallas_check(add, x, x, reference=reference, checks="positive")
        """,
    )
    records = project.records(
        "--pallas-suite=specs", "test_own.py", "--pallas-backend=interpret",
        "--pallas-checks=positive", "--pallas-max-examples=4",
    )  # fmt: skip
    assert [(r["kernel"], r["check"], r["outcome"], r["examples"]) for r in records] == [
        ("add", "positive", "failed", 1),
        ("positive_add", "positive", "passed", 2),
    ]
    assert "add: positive on interpret: negative" in records[0]["message"]


def test_where_it_can_be_asked(project):
    """``on`` is asked about the backend, ``against`` about those that came before it."""
    project.specs('name="add", kernel=add')
    project.write(
        conftest="""
        from pytest_pallas import Check

        def _run(trial):
            from pytest_pallas.checks.trial import Finding

            return Finding(comparisons=[], notes=tuple(other.name for other in trial.others))

        def pytest_pallas_checks(config):
            rest = {"asks": "?", "run": _run, "needs": lambda spec: None}
            return [
                Check(
                    name="some",
                    on=lambda backend: None if backend.name == "interpret" else "elsewhere",
                    **rest,
                ),
                Check(
                    name="second",
                    against=lambda spec, others: None if len(others) == 1 else "not the second",
                    **rest,
                ),
            ]
        """
    )
    words = ("--pallas-suite=specs", "--pallas-checks=some,second", "--pallas-max-examples=1")
    backends = "--pallas-backend=interpret,tpu-interpret:v5e,tpu-interpret:v6e"
    records = project.records(*words, backends)
    assert [(r["check"], r["backend"], r["notes"]) for r in records] == [
        ("some", "interpret", []),
        ("second", "tpu-interpret:v5e", ["interpret"]),
    ]
    project.specs('name="add", kernel=add, checks=("some", "second")')
    result = project.run(*words, backends, "-rs")
    result.assert_outcomes(passed=2, skipped=4)
    assert "some needs more: elsewhere" in result.stdout.str()
    assert "second needs more: not the second" in result.stdout.str()


def test_it_is_among_the_valid_ones(project):
    project.write(conftest=CONFTEST)
    result = project.run("--pallas-checks=nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert ", positive" in result.stderr.str()
