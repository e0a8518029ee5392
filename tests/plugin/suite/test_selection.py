"""Specs are pytest items: ids, -k, -x, --lf, --collect-only, node ids."""

from __future__ import annotations

import pytest

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-interpret:v6e", "--pallas-max-examples=1")


@pytest.fixture
def suite(project):
    """Two specs, of which one is wrong."""
    project.specs(
        'name="minus", kernel=add_off, checks=("forward", "determinism")',
        'name="plus", kernel=add, checks=("forward", "determinism")',
    )
    return project


IDS = [
    "specs.py::minus-forward[tpu-interpret:v6e]",
    "specs.py::minus-determinism[tpu-interpret:v6e]",
    "specs.py::plus-forward[tpu-interpret:v6e]",
    "specs.py::plus-determinism[tpu-interpret:v6e]",
]


def collected(result):
    return [line for line in result.outlines if line.startswith("specs.py::")]


def test_collect_only_lists_spec_check_and_backend(suite):
    assert collected(suite.run(*SUITE, "--collect-only", "-q")) == IDS


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("plus", [2, 3]),
        ("forward", [0, 2]),
        ("plus and not forward", [3]),
        ("minus-forward", [0]),
        ("v6e and plus", [2, 3]),
    ],
)
def test_keywords_select_parts_of_the_item_name(suite, expression, chosen):
    result = suite.run(*SUITE, "--collect-only", "-q", "-k", expression)
    assert collected(result) == [IDS[number] for number in chosen]


@pytest.mark.parametrize("extra", [(), ("--pallas-suite=specs",)], ids=["alone", "with suite"])
def test_a_node_id_of_a_spec_needs_its_suite(suite, extra):
    """A node id needs the suite to be named, or it is no file of specs."""
    result = suite.run(*SUITE[1:], *extra, IDS[2], "-v")
    if extra:
        result.assert_outcomes(passed=1)
    else:
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "not found" in result.stderr.str()


def test_stop_at_the_first_failure(suite):
    result = suite.run(*SUITE, "-x", "--pallas-results=r.json")
    result.assert_outcomes(failed=1)
    assert '"kernel": "minus"' in (suite.path / "r.json").read_text()
    assert "stopping after 1 failures" in result.stdout.str()


def test_last_failed_selects_the_failed_item(suite):
    suite.run(*SUITE).assert_outcomes(failed=1, passed=3)
    result = suite.run(*SUITE, "--lf", "-v")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines([f"{IDS[0].replace('[', '[[]')} FAILED*"])


def test_last_failed_of_several_suites(suite):
    suite.specs('name="more", kernel=add', name="more")
    args = ("--pallas-suite=specs,more", *SUITE[1:], "--pallas-checks=forward")
    suite.run(*args).assert_outcomes(failed=1, passed=2)
    suite.run(*args, "--lf").assert_outcomes(failed=1, deselected=1)


def test_deselect_takes_the_node_id_of_an_item(suite):
    suite.run(*SUITE, "--deselect", IDS[0]).assert_outcomes(passed=3, deselected=1)


def test_a_backend_that_a_spec_does_not_claim(suite):
    """It is skipped where the backend was named, and left out where it was not."""
    result = suite.run("--pallas-suite=specs", "--pallas-backend=gpu-interpret", "-rs")
    result.assert_outcomes(skipped=2)
    assert "claims only tpu-sim, interpret, tpu-interpret, tpu-compile, tpu" in result.stdout.str()
    result = suite.run("--pallas-suite=specs", "--collect-only", "-q")
    assert "gpu-interpret" not in "".join(collected(result))


def test_expected_failures_of_specs_are_strict(project):
    project.specs(
        'name="add", kernel=add, checks=("forward", "determinism"), xfail={'
        '"interpret": ExpectedFailure(reason="#1", jax="0.12", checks=("forward",))}',
        'name="off", kernel=add_off, checks=("forward", "determinism"), xfail={'
        '"tpu-interpret:v5e": ExpectedFailure(reason="#2", jax="0.12", checks=("forward",))}',
    )
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=interpret,tpu-interpret:v5e",
        "--pallas-max-examples=1", "--pallas-checks=forward",
    )  # fmt: skip
    assert [(r["kernel"], r["backend"], r["outcome"], r["reason"]) for r in records] == [
        ("add", "interpret", "xpassed", "#1 (JAX 0.12)"),
        ("add", "tpu-interpret:v5e", "passed", ""),
        ("off", "interpret", "failed", ""),
        ("off", "tpu-interpret:v5e", "xfailed", "#2 (JAX 0.12)"),
    ]


def test_failures_of_what_executes_the_kernel(project):
    """``dtype`` only traces the kernel, so it must pass where nothing can execute it."""
    project.specs(
        'name="refused", kernel=add_off, checks=("forward", "dtype", "determinism"), xfail={'
        '"interpret": ExpectedFailure(reason="#1", jax="0.12", scope="executing")}',
    )
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--pallas-max-examples=1",
    )  # fmt: skip
    assert {r["check"]: r["outcome"] for r in records} == {
        "forward": "xfailed", "dtype": "passed", "determinism": "xpassed",
    }  # fmt: skip
