"""Specs: what their parts mean by themselves."""

from __future__ import annotations

import pytest

from pytest_pallas import ExpectedFailure, SpecError


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        ({}, ["forward", "grid"]),
        ({"scope": "executing"}, ["forward"]),
        ({"checks": ("grid",)}, ["grid"]),
        ({"checks": ("grid",), "scope": "executing"}, []),
    ],
)
def test_the_checks_that_an_expected_failure_covers(given, covered):
    failure = ExpectedFailure(reason="#1", jax="0.12", **given)
    executes = {"forward": True, "grid": False}
    assert [n for n, runs in executes.items() if failure.covers(n, executes=runs)] == covered


def test_an_expected_failure_of_an_unknown_scope():
    with pytest.raises(SpecError, match='scope must be "all" or "executing", not \'tracing\''):
        ExpectedFailure(reason="#1", jax="0.12", scope="tracing")
