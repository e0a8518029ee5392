"""Few examples, but different ones; and a budget for shrinking."""

import hypothesis
import pytest
from hypothesis import strategies as st

from pytest_pallas import compat
from pytest_pallas import strategies as pst
from pytest_pallas.suites import fuzzing, variety

CALLS = pst.arguments(
    pst.arrays("m k, k n", dtype=pst.floats(), around=8),
    options={"causal": st.booleans(), "scale": st.sampled_from([0.5, 1.0])},
    tuning={"block": st.sampled_from([8, 16])},
)


def run(ask, *, strategy=CALLS, examples=4, seed=0, **rest):
    fuzzing.fuzz(ask, strategy, key="unit", seed=seed, max_examples=examples, **rest)


@pytest.fixture(autouse=True)
def no_database():
    """What failed here must not be replayed in the next test."""
    before = compat.hypothesis_profile()
    hypothesis.settings.register_profile("unit", database=None)
    hypothesis.settings.load_profile("unit")
    yield
    hypothesis.settings.load_profile(before)


def test_two_examples_vary_an_option():
    """Independent draws would leave it as it is for half of the seeds; 9 of 10 must vary it."""
    varied = 0
    for seed in range(10):
        seen = []
        run(lambda call, seen=seen: seen.append(call), examples=2, seed=seed)
        assert len(seen) == 2
        varied += {call.options["causal"] for call in seen} == {True, False}
    assert varied >= 9


def test_four_examples_vary_every_option():
    for seed in range(10):
        seen = []
        run(lambda call, seen=seen: seen.append(call), examples=4, seed=seed)
        for values in (
            {call.options["causal"] for call in seen},
            {call.options["scale"] for call in seen},
            {str(call.args[0].dtype) for call in seen},
        ):
            assert len(values) == 2, seed


def test_as_many_as_asked_for_and_all_different():
    seen = []
    run(lambda call: seen.append(repr(call)), examples=8)
    assert len(seen) == len(set(seen)) == 8


def test_same_seed_same_examples():
    runs = []
    for _ in range(2):
        seen = []
        run(lambda call, seen=seen: seen.append(repr(call)))
        runs.append(seen)
    assert runs[0] == runs[1]


def test_a_failure_is_shrunk_and_has_a_blob():
    def ask(call):
        m = call.args[0].shape[0]
        assert m < 9

    with pytest.raises(AssertionError) as caught:
        run(ask, examples=8)
    blob = fuzzing.blob_of(caught.value)
    assert blob
    again = []

    def ask_again(call):
        again.append(call)
        ask(call)

    with pytest.raises(AssertionError):
        run(ask_again, blob=blob)
    assert {call.args[0].shape for call in again} == {(9, 1)}


def test_a_spent_budget_runs_only_what_failed_before():
    budget = fuzzing.Budget(seconds=0.0)
    assert not budget.spent("a")
    budget.failed("a")
    assert budget.spent("b")
    assert not budget.spent("a")


def test_examples_without_a_recipe_are_chosen_too():
    choice = variety.choose(st.tuples(st.integers(0, 3)), seed=0, examples=2)
    assert len(choice.chosen) == 2
    assert set(choice.chosen) <= choice.everything
