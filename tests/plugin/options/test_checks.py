"""``--pallas-checks``."""

from __future__ import annotations

import pytest

ALL = [
    "forward",
    "gradient",
    "vmap",
    "determinism",
    "immutability",
    "dtype",
    "jit",
    "export",
    "blocks",
    "sharding",
    "padding",
    "grid",
    "oracle-strength",
    "memory",
    "donation",
]


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("all", ALL),
        ("forward", ["forward"]),
        ("immutability,forward,forward", ["immutability", "forward"]),
        ("none", []),
    ],
)
def test_choice(project, flag, names):
    project.specs(
        'name="add", kernel=lambda x, y, *, block=8: add(x, y), differentiable=(0, 1), '
        'vmappable=True, batch_axes=(0, 0), inputs=pst.arguments(INPUTS, tuning={"block": 16})'
    )
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=interpret", f"--pallas-checks={flag}",
        "--collect-only", "-q",
    )  # fmt: skip
    found = [line for line in result.outlines if line.startswith("specs.py::")]
    assert found == [f"specs.py::add-{name}[interpret]" for name in names]


def test_checks_that_do_not_apply_are_left_out(project):
    project.specs('name="add", kernel=add')
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--collect-only", "-q"
    )
    text = result.stdout.str()
    assert "add-forward" in text
    assert "add-gradient" not in text
    assert "add-vmap" not in text
    assert "add-blocks" not in text
    assert "add-sharding" not in text
    assert "add-dtype" in text


def test_export_is_left_out_where_kernels_are_callbacks(project):
    project.specs('name="add", kernel=add')
    words = "--pallas-suite=specs", "--pallas-checks=export"
    text = project.run(*words, "--collect-only", "-q").stdout.str()
    assert "add-export[interpret]" in text
    assert "add-export[tpu-interpret]" not in text
    project.specs('name="add", kernel=add, checks=("export",)')
    result = project.run(*words, "--pallas-backend=interpret,tpu-interpret", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert "export needs more: tpu-interpret runs kernels by callbacks" in result.stdout.str()


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("blocks", "its inputs draw no tuning"),
        ("sharding", "the spec names no batch_axes"),
        ("linearity", "the spec declares no Linear among its relations"),
        ("permutation", "the spec declares no Permuted among its relations"),
        ("relation", "the spec declares no Relation among its relations"),
        ("cross", "the spec names no other implementations, and claims no other chosen backend"),
    ],
)
def test_checks_that_need_more_of_a_spec(project, check, reason):
    project.specs(f'name="add", kernel=add, checks=("{check}",)')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", "-rs")
    result.assert_outcomes(skipped=1)
    assert f"{check} needs more: {reason}" in result.stdout.str()


def test_checks_that_a_spec_asks_for_and_that_cannot_be_asked_are_skipped(project):
    project.specs('name="add", kernel=add, checks=("gradient",)')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", "-rs")
    result.assert_outcomes(skipped=1)
    assert "gradient needs more: the spec names no differentiable arguments" in result.stdout.str()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--pallas-checks=races",), "races needs more: interpret does not simulate"),
        (("--pallas-checks=device",), "device needs more: interpret is no GPU"),
        (("--pallas-checks=sharding,races",), "sharding needs more: "),
    ],
)
def test_checks_that_cannot_be_asked_say_why(project, words, why):
    project.specs('name="add", kernel=add')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert why in result.stderr.str()
