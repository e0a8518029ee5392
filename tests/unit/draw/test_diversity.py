"""A handful of examples that have most together."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.draw import diversity
from pytest_pallas.draw.arguments import Declared, Drawn, aspects, extents, variants
from pytest_pallas.draw.diversity import BASE, choose, draw_name
from pytest_pallas.errors import SpecError
from pytest_pallas.record import Aspect

CALL = pst.arguments(
    pst.arrays("m k", dtype=pst.floats(), around={"m": 16, "k": 128}),
    options={"causal": st.booleans(), "scale": st.sampled_from([None, 0.5])},
    tuning={"block": st.sampled_from([16, 32])},
)


def tried(calls):
    """Every aspect of some calls with its word."""
    return {pair for call in calls for pair in aspects(call)}


def test_a_few_examples_meet_all_that_is_declared():
    """Each dim has eight kinds of boundary: every example has to bring a new one of each dim.

    For another version of hypothesis one seed may miss one; independent draws miss six to eight.
    """
    missed = 0
    for seed in range(4):
        chosen = choose(CALL, seed=seed, examples=8).values()
        words = next(iter(chosen)).declared.choices
        assert len(words) == 7
        declared = {(aspect, word) for aspect in words for word in words[aspect]}
        missed += len(declared - tried(chosen))
    assert missed <= 1


FIXED = {Aspect("values"), Aspect("dim", "m")}


def test_examples_that_bring_nothing_alone_bring_pairs():
    """Four choices between two are 24 pairs, which six examples can have; two have every choice."""
    call = pst.arguments(
        pst.arrays("m", dtype=pst.dtypes("float32", "bfloat16"), values="normal", dims={"m": 16}),
        options={"causal": st.booleans(), "scale": st.sampled_from([None, 0.5])},
        tuning={"block": st.sampled_from([16, 32])},
    )
    for seed in range(4):
        chosen = choose(call, seed=seed, examples=BASE).values()
        words = [[each for each in aspects(one) if each[0] not in FIXED] for one in chosen]
        assert len({pair for each in words for pair in combinations(each, 2)}) == 24


def test_fewer_examples_are_among_more():
    """So that checks share compiled kernels."""
    chosen = set(choose(CALL, seed=0, examples=BASE))
    for examples in (1, 2, 3):
        assert set(choose(CALL, seed=0, examples=examples)) < chosen


def test_half_as_many_bring_what_was_left_out():
    """Too many kinds for one choice; the check that draws half of it draws one of the others."""
    call = pst.arrays("m", dtype="int8", dims={"m": range(1, 13)})
    base = choose(call, seed=0, examples=BASE)
    half = choose(call, seed=0, examples=BASE // 2)
    assert len(base) == BASE
    assert len(set(half) - set(base)) == 1
    assert tried(half.values()) - tried(base.values())


def test_the_choice_is_always_the_same():
    one, other = (choose(CALL, seed=3, examples=5) for _ in range(2))
    assert list(one) == list(other)
    assert [draw_name(call) for call in one.values()] == list(one)
    assert list(choose(CALL, seed=4, examples=5)) != list(one)


def test_no_more_examples_than_there_are():
    assert len(choose(st.tuples(st.booleans()), seed=0, examples=6)) == 2


def test_a_source_is_drawn_from_once_and_keeps_its_siblings():
    draws = []
    strategy = pst.arrays("m k", around=8, dtype="float32").map(lambda x: draws.append(1) or x)
    source = diversity.ExampleSource(strategy)
    first = source.choose(0, 8)
    count = len(draws)
    for drawn in first.values():
        assert all(array.size for array in drawn)  # as a check looks at it
    again = source.choose(0, 4)
    assert len(draws) == count
    assert len(again) == 4
    assert all(list(variants(drawn)) for drawn in again.values())


def test_large_draws_are_not_kept(monkeypatch):
    monkeypatch.setattr(diversity, "MOST_BYTES", 0)
    source = diversity.ExampleSource(pst.arrays("m k", around=8, dtype="float32"))
    choice = source.choose(0, 4)
    assert not source.pools.get((0, diversity.pool_size(4))).values
    assert all(diversity.draw_name(drawn) == words for words, drawn in choice.items())


def test_sources_of_the_last_specs_are_kept():
    sources = {}
    made = [diversity.shared(sources, key, lambda: pst.arrays("m")) for key in range(4)]
    assert list(sources) == [1, 2, 3]
    assert diversity.shared(sources, 2, lambda: None) is made[2]
    assert list(sources) == [1, 3, 2]


def test_draws_of_which_there_is_nothing_to_ask_are_left_out():
    plain = choose(CALL, seed=0, examples=4)
    told = choose_with(lambda call: ["diagonal"] * call.options["causal"], examples=4)
    assert len(told) == 4
    assert all(call.options["causal"] for call in told.values())
    kept = [words for words, call in plain.items() if call.options["causal"]]
    assert list(told)[: len(kept)] == kept


def test_one_draw_of_each_subject_comes_first():
    """A few examples ask all that can be asked, however rare the draws are where it can be."""

    def subjects(call):
        return {
            "always": True,
            "rare": call.args[0].shape[0] == 1,
            "rarer": call.args[0].shape[1] == 1,
        }

    told = choose_with(lambda call: [name for name, is_so in subjects(call).items() if is_so])
    assert {name for call in told.values() for name, is_so in subjects(call).items() if is_so} == {
        "always",
        "rare",
        "rarer",
    }


def test_with_one_subject_the_choice_is_the_plain_one():
    assert list(choose_with(lambda call: ["all"])) == list(choose(CALL, seed=0, examples=2))
    assert list(choose_with(lambda call: ())) == list(choose(CALL, seed=0, examples=2))


def choose_with(subjects, examples=2):
    """The draws of ``CALL`` that are chosen for what there is to ask about them."""
    return diversity.ExampleSource(CALL).choose(0, examples, subjects)


def _draws(strategy):
    """How often a strategy is drawn from to choose from."""
    count = 0

    def counted(drawn):
        nonlocal count
        count += 1
        return drawn

    chosen = choose(strategy.map(counted), seed=0, examples=4)
    assert len(chosen) == 4
    return count


def test_drawing_ends_when_draws_bring_nothing_new():
    few = pst.arrays("m n", dtype="float32", dims={"m": [8], "n": [128, 256]})
    many = pst.arrays("m n", dtype="float32", around={"m": 64, "n": 128})
    assert _draws(few) < _draws(many)


@pytest.mark.parametrize("shapes", ["m k", "a b c"])
def test_one_example_has_several_blocks_and_an_edge_along_every_axis(shapes):
    strategy = pst.arrays(shapes, dtype="float32", around=16)
    for seed in range(10):
        chosen = choose(strategy, seed=seed, examples=3).values()
        assert {"several", "ragged"} in [extents(each) for each in chosen]
        assert len(chosen) == 3


def test_an_example_of_one_block_is_no_example_of_several():
    one, several = (Drawn((), {"m": m}, declared=Declared(tiles={"m": (16,)})) for m in (16, 32))
    assert extents(one) == set()
    assert extents(several) == {"several"}
    assert extents(Drawn((), {"m": 33}, declared=Declared())) == set()


def test_a_strategy_that_filters_too_much_is_told_what_to_do():
    strategy = pst.arrays("m n").filter(lambda drawn: drawn[0].shape == (7, 7))
    with pytest.raises(SpecError, match=r"gives too few examples.*in place of .filter\(\)"):
        choose(strategy, seed=0, examples=8)
