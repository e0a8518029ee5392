"""What a user's own strategies draw: lists in every pattern, numbers at the ends of their range."""

import random

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_pallas import strategies as pst
from pytest_pallas.compat.fuzzing import PLANNED, planning
from pytest_pallas.draw.covering import Covering, planned
from pytest_pallas.draw.examples import choose
from pytest_pallas.draw.steering import PATTERNS, edge

MOST = 64


def drawn(strategy, examples=32, seed=0):
    return [tuple(call) for call in choose(strategy, seed=seed, examples=examples).values()]


@st.composite
def by_list(draw):
    count = draw(st.integers(1, 4))
    lengths = st.lists(st.integers(0, MOST), min_size=count, max_size=count)
    return (np.array(draw(lengths), np.int32),)


@st.composite
def by_loop(draw):
    count = draw(st.integers(1, 4))
    return (np.array([draw(st.integers(0, MOST)) for _ in range(count)], np.int32),)


@st.composite
def by_array(draw):
    count = draw(st.integers(1, 4))
    return (draw(hnp.arrays(np.int32, (count,), elements=st.integers(0, MOST))),)


def of_a_call():
    def then(call):
        size = {"min_size": call.recipe["b"], "max_size": call.recipe["b"]}
        numbers = st.lists(st.integers(0, MOST), **size)
        return {"lengths": numbers.map(lambda made: np.array(made, np.int32))}

    arrays = pst.arrays("b n", dims={"b": [1, 2, 3, 4], "n": 8}, dtype="float32")
    calls = pst.arguments(arrays, then=then)
    return calls.map(lambda call: (call.args[1],))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("strategy", [by_list(), by_loop(), by_array(), of_a_call()])
def test_lists_of_users_come_in_all_patterns(strategy, seed):
    lists = [lengths.tolist() for (lengths,) in drawn(strategy, examples=40, seed=seed)]
    several = [made for made in lists if len(made) > 1]
    assert any(set(made) == {MOST} for made in several)
    assert any(set(made) == {0} for made in several)
    assert any(0 == made[0] < min(made[1:]) for made in several)
    assert any(0 == made[-1] < min(made[:-1]) for made in several)
    assert any(0 in made[1:-1] and made[0] and made[-1] for made in several)
    assert any(MOST - 1 in made for made in lists)
    assert any(number % 4 == 1 and number > 4 for made in lists for number in made)
    assert any(made == sorted(set(made)) for made in several)
    assert any(made == sorted(set(made), reverse=True) for made in several)
    alike = sum(len(set(made)) == 1 for made in several)
    assert 2 <= alike <= len(several) / 2


def test_rows_of_an_array_have_patterns_of_their_own():
    @st.composite
    def masks(draw):
        return (draw(hnp.arrays(np.bool_, (4, 8))),)

    made = [mask for (mask,) in drawn(masks())]
    some = [mask for mask in made if 0 < mask.sum() < mask.size]
    assert any((~mask.any(axis=1)).any() for mask in some)
    assert any(mask.all(axis=1).any() for mask in some)
    assert any((mask.sum(axis=1) == 1).any() for mask in some)
    assert len(some) > len(made) / 2


def test_numbers_flags_and_lengths_of_lists_are_at_their_ends():
    @st.composite
    def single(draw):
        number, flag = draw(st.integers(3, 1000)), draw(st.booleans())
        return (np.array(draw(st.lists(st.integers(0, 9), max_size=5))), number, flag)

    calls = drawn(single())
    assert {3, 4, 999, 1000} <= {number for _, number, _ in calls}
    assert {0, 1, 4, 5} <= {len(made) for made, _, _ in calls}
    assert {(made.size > 0, flag) for made, _, flag in calls} == {
        (some, flag) for some in (False, True) for flag in (False, True)
    }


def test_orders_of_permutations_and_picks():
    @st.composite
    def orders(draw):
        order = draw(st.permutations(range(5)))
        return (np.array(order), np.array(draw(st.lists(st.sampled_from("abcde"), unique=True))))

    calls = drawn(orders())
    made = {tuple(order.tolist()) for order, _ in calls}
    assert {(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (4, 0, 1, 2, 3)} <= made
    assert len(made) > 6
    picked = ["".join(picks) for _, picks in calls]
    assert any("".join(sorted(picks)) != picks for picks in picked)
    assert max(map(len, picked)) == 5


def test_different_numbers_stay_different():
    unique = st.lists(st.integers(0, 7), min_size=8, max_size=8, unique=True)
    made = [numbers.tolist() for (numbers,) in drawn(unique.map(lambda it: (np.array(it),)))]
    assert all(sorted(numbers) == list(range(8)) for numbers in made)
    assert list(range(8)) in made


def test_a_strategy_that_rejects_most_patterns_has_all_its_examples():
    @st.composite
    def odd(draw):
        numbers = [draw(st.integers(0, 99)) for _ in range(3)]
        assume(numbers[0] % 2 and sum(numbers) < 200)
        return (np.array(numbers),)

    assert len(drawn(odd(), examples=16)) == 16
    filtered = st.lists(st.integers(0, 99).filter(lambda n: n % 2), min_size=3, max_size=3)
    assert len(drawn(filtered.map(lambda it: (np.array(it),)), examples=16)) == 16


def test_seeds_and_large_lists_are_random():
    @st.composite
    def data(draw):
        seed = draw(st.integers(0, 2**32 - 1))
        return (np.array(draw(st.lists(st.integers(0, 9), min_size=300, max_size=300))), seed)

    calls = drawn(data(), examples=8)
    assert len({seed for _, seed in calls}) >= 7
    assert all(len(set(numbers.tolist())) > 3 for numbers, _ in calls[1:])


@pytest.mark.parametrize("name", [name for name, make in PATTERNS.items() if make])
def test_patterns_stay_within_bounds(name):
    chance = random.Random(0)
    for count in (1, 2, 3, 7):
        for low, high in ((0, 1), (0, 2), (5, 64), (-3, 70_000)):
            for _ in range(20):
                numbers = PATTERNS[name](count, low, high, chance)
                assert len(numbers) == count
                assert all(low <= number <= high for number in numbers)


def test_edges_are_one_beside_a_tile():
    chance = random.Random(0)
    numbers = {edge(0, 48, chance) for _ in range(400)}
    assert {15, 16, 17, 31, 32, 33, 47, 48, 7, 9} <= numbers


def test_planned_lists_shrink_and_replay_without_the_plan():
    seen = []

    def test(call):
        (lengths,) = call
        if 0 in lengths[1:-1] and lengths[0] and lengths[-1] > 30:
            seen.append(lengths.tolist())
            raise ValueError("empty within")

    test = hypothesis.given(planned(by_list(), Covering(random.Random(3))))(test)
    with planning():
        settings = hypothesis.settings(
            backend=PLANNED,
            max_examples=64,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        with pytest.raises(ValueError, match="empty within"):
            settings(hypothesis.seed(3)(test))()
    assert seen[-1] == [1, 0, 31]
