"""Specs: what their parts mean by themselves."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from pytest_pallas import ExpectedFailure, KernelSpec, SpecError


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


def test_its_properties_are_those_that_checks_get():
    from pytest_pallas.checks.context import CheckContext
    from pytest_pallas.spec import properties_of

    spec = KernelSpec(
        name="k", kernel=abs, reference=abs, inputs=st.just(()),
        exact=8, differentiable=(0,), nan_ok=True,
    )  # fmt: skip
    context = CheckContext(
        kernel=abs, reference=abs, arguments=None, backend=None, **properties_of(spec)
    )
    assert properties_of(context) == properties_of(spec)
    assert (context.exact, context.differentiable, context.nan_ok) == (8, (0,), True)


def test_a_tolerance_that_is_none():
    with pytest.raises(SpecError, match=r"spec 'k' in .*: tolerance: 'tight' is none; write 1e-3"):
        KernelSpec(name="k", kernel=abs, reference=abs, inputs=st.just(()), tolerance="tight")


@pytest.mark.parametrize(
    ("unreached", "problem"),
    [
        (
            ["kernel.py:46"],
            r"unreached must map a condition, line or name to a reason, not \['kernel.py:46'",
        ),
        ({"kernel.py:46": ""}, "to the reason why it need not run, not 'kernel.py:46' to ''"),
        ({"": "reason"}, "to the reason why it need not run, not '' to 'reason'"),
        ({46: "reason"}, "to the reason why it need not run, not 46 to 'reason'"),
        ({"kernel.py:46": True}, "to the reason why it need not run, not 'kernel.py:46' to True"),
    ],
)
def test_what_need_not_run_has_a_reason(unreached, problem):
    with pytest.raises(SpecError, match=problem):
        KernelSpec(name="k", kernel=abs, reference=abs, inputs=st.just(()), unreached=unreached)


def test_what_is_redundant_has_a_reason():
    problem = "redundant must map a line or name, .* the reason why it stays, not 'k.py:46' to ''"
    with pytest.raises(SpecError, match=problem):
        KernelSpec(
            name="k", kernel=abs, reference=abs, inputs=st.just(()), redundant={"k.py:46": ""}
        )
