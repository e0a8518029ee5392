"""Few examples, but different ones; and a budget for shrinking."""

import math
import re
import time

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from pallas_sim.errors import KernelError
from pytest_pallas import strategies as pst
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks.inputs import inputs_of
from pytest_pallas.draw import examples
from pytest_pallas.errors import facts_of
from pytest_pallas.run import fuzzing
from pytest_pallas.run import fuzzing as example_runner

CALLS = pst.arguments(
    pst.arrays("m k, k n", dtype=pst.floats(), around=8),
    options={"causal": st.booleans(), "scale": st.sampled_from([0.5, 1.0])},
    tuning={"block": st.sampled_from([8, 16])},
)


#: Tests that do not ask what is drawn anew share what was drawn, as the checks of a spec do.
SOURCE = examples.ExampleSource(CALLS)


def run(ask, *, source=SOURCE, examples=4, seed=0, **rest):
    what = fuzzing.Fuzz(run=ask, source=source, key="unit", **rest)
    fuzzing.fuzz(what, seed=seed, budget=ExampleBudget.fixed(examples, varies=True))


class Clock:
    """A time that passes only when a test says so, in place of the module ``time``."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (fuzzing, example_runner):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self):
        return self.now


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
    for seed in range(4):
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
        source = examples.ExampleSource(CALLS)
        run(lambda call, seen=seen: seen.append(repr(call)), source=source)
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
        fuzzing.replay(fuzzing.Fuzz(run=ask_again, source=SOURCE, key="unit"), blob)
    assert {call.args[0].shape for call in again} == {(9, 1)}


def test_what_fails_is_not_asked_about_again():
    """A kernel that hangs takes its whole time limit, each time."""
    asked = []

    def ask(call):
        asked.append(repr(call))
        raise ValueError

    with pytest.raises(ValueError):
        run(ask)
    assert len(asked) == len(set(asked))


def test_time_for_shrinking_is_limited():
    asker = fuzzing.ExampleRunner(fail_on({2}), set(), shrink_seconds=0.0)
    asker.one(1)
    with pytest.raises(ValueError):
        asker.one(2)
    asker.one(3)  # not asked any more
    assert asker.passed == {words(1)}
    with pytest.raises(ValueError):
        asker.one(2)  # hypothesis must see it fail again


def test_an_example_that_runs_into_its_time_limit_runs_once_and_no_other_after_it():
    seen = []

    def ask(call):
        seen.append(call)
        error = KernelError("it does not end")
        error.timed_out = True
        raise error

    database = InMemoryExampleDatabase()
    with pytest.raises(KernelError) as caught:
        run(ask, examples=8, database=database)
    assert len(seen) == 1
    assert fuzzing.blob_of(caught.value)  # so that it can be replayed
    assert not facts_of(caught.value).others


def test_time_for_asking_is_limited():
    asker = fuzzing.ExampleRunner(fail_on({2}), set(), until=time.monotonic())
    asker.one(2)
    assert not asker.passed
    assert not asker.failed


def fail_on(numbers):
    def ask(number):
        if number in numbers:
            raise ValueError

    return ask


def words(call):
    return examples.draw_name(call)


@pytest.mark.parametrize("shrink", [False, True])
def test_what_failed_runs_first_in_the_next_run(shrink):
    database = InMemoryExampleDatabase()

    def ask(call):
        assert call.args[0].shape[0] < 9

    with pytest.raises(AssertionError):
        run(ask, examples=8, database=database, shrink=shrink)
    again = []

    def ask_again(call):
        again.append(call.args[0].shape[0])
        ask(call)

    with pytest.raises(AssertionError):
        run(ask_again, examples=1, seed=5, database=database, shrink=False)
    assert again[0] >= 9
    mended = []
    run(mended.append, examples=1, seed=5, database=database)
    assert mended[0].args[0].shape[0] >= 9
    for _ in range(50):  # hypothesis forgets two in each run, what it shrank on its way included
        seen = []
        run(seen.append, examples=1, seed=5, database=database)
        if len(seen) == 1:
            return
    pytest.fail("what passes is not forgotten")


def test_of_many_examples_some_are_siblings():
    seen = []
    run(seen.append, examples=128)
    assert len({repr(call) for call in seen}) == len(seen) == 128
    draws = {call.recipe["seed"] for call in seen}
    signatures = {(str(call.options), *(x.shape for x in call.args)) for call in seen}
    assert len(signatures) <= 32
    assert len(draws) < 128


def test_a_failure_that_only_a_sibling_has_is_shrunk_and_replayed():
    def ask(call):
        if call.recipe["seed"] % 4 == 3 and call.recipe["m"] > 3:
            raise ValueError(repr(call))

    with pytest.raises(ValueError) as caught:
        run(ask, examples=128)
    assert "m=7" in str(caught.value)
    assert "k=1, n=1" in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(str(caught.value))):
        fuzzing.replay(
            fuzzing.Fuzz(run=ask, source=SOURCE, key="unit"),
            fuzzing.blob_of(caught.value),
        )


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(1, (1, 1)), (8, (8, 1)), (32, (16, 2)), (128, (32, 4)), (512, (64, 8)), (1024, (128, 8))],
)
def test_draws_and_siblings_grow_alike(examples, expected):
    assert fuzzing.effort(examples) == expected


def test_siblings_as_long_as_they_are_cheap(monkeypatch):
    """A draw that takes a while, as compiling does, has many; one that does not has few."""
    clock, counts = Clock(monkeypatch), []
    for slow in (0.02, 0.0):
        shapes = []

        def ask(call, shapes=shapes, slow=slow):
            shape = repr((call.args[0].shape, call.args[1].shape, call.options, call.tuning))
            clock.now += slow if shape not in shapes else 0.001
            shapes.append(shape)

        what = fuzzing.Fuzz(run=ask, source=SOURCE, key="unit")
        fuzzing.fuzz_until(what, seed=0, until=math.inf)
        counts.append(len(shapes))
    assert counts[0] > 2 * counts[1]
    assert counts[1] >= fuzzing.ROUND


def test_rounds_go_on_to_new_shapes():
    rounds = []
    what = fuzzing.Fuzz(
        run=lambda call: rounds[-1].add(inputs_of(call).signature),
        source=SOURCE,
        key="unit",
    )
    for seed in (1, 2):
        rounds.append(set())
        fuzzing.fuzz_until(what, seed=seed, until=math.inf)
    assert len(rounds[0]) == fuzzing.ROUND
    assert rounds[1]
    assert not rounds[0] & rounds[1]


def test_siblings_that_are_not_asked_about_are_not_made(monkeypatch):
    clock, made, asked = Clock(monkeypatch), [], []
    with_values = pst.Arguments.with_values

    def making(call, values):
        made.append(call)
        return with_values(call, values)

    def ask(call):
        shape = inputs_of(call).signature
        clock.now += 0.001 if shape in asked else 0.01
        asked.append(shape)

    monkeypatch.setattr(pst.Arguments, "with_values", making)
    what = fuzzing.Fuzz(run=ask, source=examples.ExampleSource(CALLS), key="unit")
    fuzzing.fuzz_until(what, seed=0, until=math.inf)
    assert len(made) <= len(asked) - len(set(asked)) + 5  # what was asked about before is skipped


def test_calls_without_a_recipe_are_told_apart():
    """Their words are shapes, and their values may differ."""
    seen = []
    strategy = st.integers(0, 100).map(lambda n: (np.full(3, n),))
    run(seen.append, source=examples.ExampleSource(strategy), examples=8)
    assert len({int(call[0][0]) for call in seen}) == 8


def test_examples_without_a_recipe_are_chosen_too():
    choice = examples.choose(st.tuples(st.integers(0, 3)), seed=0, examples=2)
    assert len(choice) == 2


def test_three_of_four_examples_of_a_time_limit_have_a_shape_of_their_own():
    """On simulators; elsewhere a new shape is compiled, so most examples are variants."""
    for varies in (False, True):
        shapes = list[tuple[int, int]]()
        what = fuzzing.Fuzz(
            run=lambda call, shapes=shapes: shapes.append((call.recipe["m"], call.recipe["n"])),
            source=examples.ExampleSource(pst.arrays("m n", dtype="float32", around=32)),
            key="unit",
        )
        fuzzing.fuzz_until(what, seed=0, until=math.inf, varies=varies)
        assert len(shapes) > len(set(shapes))
        assert (4 * len(set(shapes)) >= 3 * len(shapes)) is not varies
