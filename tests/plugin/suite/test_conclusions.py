"""What a check says of all examples of an item together, and of those it cannot be asked about."""

from __future__ import annotations

import pytest

ONE = ("--pallas-suite=specs", "--pallas-backend=interpret")

CONFTEST = """
    from pytest_pallas import Check

    def _run(context):
        from pytest_pallas.checks.context import CheckResult
        from pytest_pallas import NotApplicableError

        width = context.arguments.args[0].shape[1]
        if width > 200:
            raise NotApplicableError("only narrow ones can be asked about")
        return CheckResult(comparisons=[], evidence=width)

    def _conclude(evidence):
        return None if 64 in evidence else f"never narrow: {sorted(evidence)}"

    def pytest_pallas_checks(config):
        return [
            Check(
                name="narrow",
                asks="is it?",
                run=_run,
                example_fraction=0.25,
                conclude=_conclude,
                min_examples=3,
            )
        ]
"""


def spec(name, *widths):
    return (
        f'name="{name}", kernel=add, checks=("narrow",), inputs=pst.arrays("m n, m n", '
        f'dtype="float32", values="normal", dims={{"m": 8, "n": {list(widths)}}})'
    )


@pytest.mark.parametrize(
    ("widths", "outcome", "examples", "words"),
    [
        ((64, 128, 130), "passed", 3, ""),
        ((128, 129, 130), "failed", 3, "wide: narrow on interpret: never narrow: [128, 129, 130]"),
        ((64, 256, 257), "passed", 1, ""),
        (
            (256, 257, 258),
            "skipped",
            0,
            "narrow: not applicable (only narrow ones can be asked about)",
        ),
    ],
)
def test_a_conclusion_is_over_all_examples(project, widths, outcome, examples, words):
    project.write(conftest=CONFTEST)
    project.specs(spec("wide", *widths))
    [record] = project.records(*ONE, "--pallas-max-examples=3")
    assert (record["outcome"], record["examples"]) == (outcome, examples)
    assert record["message"] + record["reason"] == words
    assert "--pallas-seed=0" in record["replay"] or outcome != "failed"


def test_tests_of_ones_own(project):
    """One call is asked about by name, and not by "all"."""
    project.write(
        conftest=CONFTEST,
        test_own="""
        import numpy as np
        import pytest
        from kernels import *

        X = np.ones((8, 128), np.float32)

        @pytest.mark.parametrize("checks", ["narrow", "all"])
        def test_add(pallas_check, checks):
            pallas_check(
                add_vjp, X, X, reference=reference, checks=checks, differentiable=(0, 1)
            )
        """,
    )
    result = project.run("--pallas-backend=interpret")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*add_vjp: narrow on interpret: never narrow: [[]128]*"])


def test_padding_and_strength_of_a_spec(project):
    project.specs(
        'name="add", kernel=add, checks=("padding", "oracle-strength")',
        'name="loose", kernel=add, checks=("oracle-strength",), '
        "tolerance=__import__('pytest_pallas').Tolerance(atol=100.0)",
        'name="declared", kernel=add, checks=("padding",), '
        "ignored=lambda x, y: (np.ones(x.shape, bool), None)",
    )
    results = project.results(ONE[0], "--pallas-backend=tpu-sim", "--pallas-max-examples=2")
    found = {(r["kernel"], r["check"]): r for r in results["records"]}
    assert {key: r["outcome"] for key, r in found.items()} == {
        ("add", "oracle-strength"): "passed",
        ("loose", "oracle-strength"): "failed",
        ("declared", "padding"): "failed",
    }
    [entry] = results["not_applicable"]  # the kernel has no blocks
    assert (entry["kernel"], entry["check"], entry["found"]) == ("add", "padding", "collection")
    assert entry["requirement"].startswith("no block extends beyond its array, and the spec has")
    assert "tolerance: Tolerance(atol=100)" in found["loose", "oracle-strength"]["message"]
    assert "with NaN in the ignored elements" in found["declared", "padding"]["message"]


@pytest.mark.parametrize(
    ("ignored", "words"),
    [
        ("lambda x, y: (None, None, None)", "ignored must return None or a bool array for each"),
        ("lambda x, y: (np.ones((1, 1), bool), None)", "mask of argument 0 has shape (1, 1)"),
        ("lambda x: (None,)", "ignored raised TypeError"),
    ],
)
def test_what_is_ignored_is_validated_at_collection(project, ignored, words):
    project.specs(f'name="add", kernel=add, ignored={ignored}')
    result = project.run(*ONE, "--collect-only")
    result.assert_outcomes(errors=1)
    assert words in result.stdout.str()


def test_ignored_must_be_a_function(project):
    project.specs('name="add", kernel=add, ignored=(None, None)')
    result = project.run(*ONE, "--collect-only")
    assert "ignored must be a function" in result.stdout.str()
