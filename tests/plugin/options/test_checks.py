"""``--pallas-checks``."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("all", ["forward", "gradient", "vmap", "determinism", "immutability"]),
        ("forward", ["forward"]),
        ("immutability,forward,forward", ["immutability", "forward"]),
        ("none", []),
    ],
)
def test_choice(project, flag, names):
    project.specs('name="add", kernel=add, differentiable=(0, 1), vmappable=True')
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


def test_checks_that_a_spec_asks_for_and_that_cannot_be_asked_are_skipped(project):
    project.specs('name="add", kernel=add, checks=("gradient",)')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", "-rs")
    result.assert_outcomes(skipped=1)
    assert "gradient needs more: the spec names no differentiable arguments" in result.stdout.str()
