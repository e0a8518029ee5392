"""A handful of examples that have most together."""

from __future__ import annotations

import re
from itertools import combinations, product
from math import prod

import pytest
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.draw import examples as examples_
from pytest_pallas.draw.arguments import Declared, Drawn, aspects, extents, variants
from pytest_pallas.draw.examples import choose, draw_name
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
    """Each dim has seven kinds of sizes: nearly every example has to bring a new one of each dim.

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


def pairs(calls):
    """All pairs of aspects that came together."""
    return {pair for call in calls for pair in combinations(sorted(aspects(call)), 2)}


def test_every_pair_of_choices_comes_together():
    """Four choices between two are 24 pairs, of which an example has six: six examples do."""
    call = pst.arguments(
        pst.arrays("m", dtype=pst.dtypes("float32", "bfloat16"), values="normal", dims={"m": 16}),
        options={"causal": st.booleans(), "scale": st.sampled_from([None, 0.5])},
        tuning={"block": st.sampled_from([16, 32])},
    )
    for seed in range(4):
        chosen = choose(call, seed=seed, examples=8).values()
        free = {pair for pair in pairs(chosen) if not {one for one, _ in pair} & FIXED}
        assert len(free) == 24


@pytest.mark.parametrize("seed", range(6))
def test_most_triples_of_options_come_together(seed):
    flags = dict.fromkeys(("transposed", "biased", "clipped"), st.booleans())
    options = {**flags, "scale": st.sampled_from([1.0, 0.5, 2.0])}
    strategy = pst.arguments(pst.arrays("m k, k k", dtype="float32"), options=options)
    drawn = choose(strategy, seed=seed, examples=16).values()
    triples = {triple for call in drawn for triple in combinations(call.options.items(), 3)}
    assert len(triples) >= 39  # of 44


def test_every_pair_of_sizes_that_constraints_allow_comes_together():
    call = pst.arrays(
        "m k; m <= k", dtype="int8", values="normal", dims={"m": range(1, 7), "k": range(1, 7)}
    )
    for seed in range(4):
        chosen = choose(call, seed=seed, examples=32).values()
        assert len({drawn[0].shape for drawn in chosen}) == 21


def test_choices_that_depend_on_others_are_covered():
    """Each option is possible for one dtype only."""
    call = pst.arguments(
        pst.arrays("m", dtype=pst.dtypes("float32", "bfloat16"), values="normal", dims={"m": 16}),
        options=lambda drawn: {"scale": st.sampled_from([drawn.recipe["dtype"], "any"])},
        tuning={"block": st.sampled_from([16, 32, 64])},
    )
    chosen = choose(call, seed=0, examples=12).values()
    together = {(call.options["scale"], call.tuning["block"]) for call in chosen}
    assert together == set(product(["float32", "bfloat16", "any"], [16, 32, 64]))


def test_a_choice_that_is_rejected_hinders_no_other():
    call = pst.arguments(
        pst.arrays("m", dtype="int8", dims={"m": range(1, 5)}),
        tuning={"block": st.sampled_from([1, 2, 3, 4])},
    ).filter(lambda drawn: drawn.recipe["m"] != drawn.tuning["block"])
    chosen = choose(call, seed=0, examples=16).values()
    assert len({(drawn.recipe["m"], drawn.tuning["block"]) for drawn in chosen}) == 12


def test_three_of_four_examples_have_a_shape_of_their_own():
    for shapes in ("m k", "m k, k n"):
        call = pst.arrays(shapes, dtype="float32", around=16)
        for examples in (8, 16, 32):
            chosen = choose(call, seed=0, examples=examples).values()
            shapes_drawn = {tuple(array.shape for array in drawn) for drawn in chosen}
            assert len(shapes_drawn) >= 3 * examples // 4


def test_no_shape_comes_twice_while_there_are_others():
    """Of twelve shapes 16 examples have all."""
    call = pst.arguments(
        pst.arrays("m n", dtype=pst.floats(), dims={"m": [8, 16, 32, 64], "n": [128, 256, 384]}),
        options={"causal": st.booleans()},
    )
    for seed in range(3):
        calls = choose(call, seed=seed, examples=16).values()
        shapes = [call.args[0].shape for call in calls]
        assert len(set(shapes[:12])) == 12


def test_most_pairs_come_with_few_tiles():
    """Large sizes come beside small ones, but for one example with several tiles everywhere."""
    call = pst.arrays("m k n", dtype="float32", values="normal", around=16)
    for seed in range(3):
        chosen = choose(call, seed=seed, examples=32).values()
        assert any(extents(drawn) == {"several", "ragged"} for drawn in [*chosen][:2])
        tiles = [prod(-(-size // 16) for size in drawn[0].shape) for drawn in chosen]
        assert sum(tiles) < 32 * 4.5  # independent sizes have 6.9


def test_draws_beyond_the_usual_ones_bring_new_pairs():
    call = pst.arrays("m n", dtype="float32", values="normal", dims={"m": [1, 2], "n": range(1, 9)})
    source = examples_.ExampleSource(call)
    assert len(source.choose(0, 16, usual=10)) == 16
    call = pst.arrays("m n", dtype="float32", dims={"m": 3, "n": [1, 2]})
    source = examples_.ExampleSource(call)
    assert len(source.choose(0, 16, usual=10)) == 10


def test_kinds_of_lists_come_with_each_size():
    call = pst.arguments(
        pst.arrays("b k", dtype="int8", dims={"b": [2, 3, 4], "k": [64]}),
        then=lambda drawn: {"lengths": pst.lengths(drawn.recipe["b"], max_length=64)},
    )
    full = {
        drawn.recipe["b"]
        for drawn in choose(call, seed=0, examples=48).values()
        if (drawn.args[1] == 64).all()
    }
    assert full == {2, 3, 4}


def test_one_example_is_not_the_simplest():
    """It has several tiles, the last of them ragged."""
    (drawn,) = choose(pst.arrays("m k", dtype="int8", around=16), seed=0, examples=1).values()
    assert extents(drawn) == {"several", "ragged"}


def test_what_has_one_value_is_drawn_once():
    assert len(choose(st.just((1,)), seed=0, examples=4)) == 1


def test_fewer_examples_are_the_first_of_more():
    """So that checks share compiled kernels."""
    chosen = [*choose(CALL, seed=0, examples=16)]
    for examples in (1, 2, 3, 8):
        assert [*choose(CALL, seed=0, examples=examples)] == chosen[:examples]


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
    source = examples_.ExampleSource(strategy)
    first = source.choose(0, 8)
    count = len(draws)
    for drawn in first.values():
        assert all(array.size for array in drawn)  # as a check looks at it
    again = source.choose(0, 4)
    assert len(draws) == count
    assert len(again) == 4
    assert all(list(variants(drawn)) for drawn in again.values())


def test_large_draws_are_not_kept(monkeypatch):
    monkeypatch.setattr(examples_, "MOST_BYTES", 0)
    source = examples_.ExampleSource(pst.arrays("m k", around=8, dtype="float32"))
    choice = source.choose(0, 4)
    assert not source.pools.get((0, examples_.LEAST)).values
    assert all(examples_.draw_name(drawn) == words for words, drawn in choice.items())


def test_sources_of_the_last_specs_are_kept():
    sources = {}
    made = [examples_.shared(sources, key, lambda: pst.arrays("m")) for key in range(4)]
    assert list(sources) == [1, 2, 3]
    assert examples_.shared(sources, 2, lambda: None) is made[2]
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
    return examples_.ExampleSource(CALL).choose(0, examples, subjects)


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


def broken(drawn):
    return drawn[0][99_999]


@st.composite
def now_and_then(draw):
    if draw(st.integers(0, 9)) > 5:
        raise KeyError("only sometimes")
    return ()


@pytest.mark.parametrize(
    ("strategy", "message", "function"),
    [
        (pst.arrays("m n").map(broken), "IndexError: index 99999 is out of bounds", "broken"),
        (pst.arrays("m n").filter(broken), "IndexError: index 99999 is out of bounds", "broken"),
        (pst.arguments(pst.arrays("m"), then=broken), "IndexError: ", "broken"),
        (now_and_then(), "KeyError: 'only sometimes'", "now_and_then"),
        (pst.arrays("m", dims={"m": st.just(()).map(broken)}), "IndexError: ", "broken"),
    ],
)
def test_a_strategy_that_raises_is_one_error_with_the_line_of_the_user(strategy, message, function):
    with pytest.raises(SpecError) as caught:
        choose(strategy, seed=0, examples=16)
    text = str(caught.value)
    assert text.startswith(f"the inputs strategy raised {message}")
    assert re.search(rf"\n  raised at \S+test_examples.py:\d+ in {function}: ", text)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (st.nothing(), "can draw nothing: it is st.nothing"),
        (pst.arrays("m").filter(lambda drawn: drawn is None), "filters out almost all draws"),
        (pst.arrays("m", dims={"m": st.nothing()}), r"dims\['m'\]: the strategy nothing\(\) can"),
        (pst.arrays("m", dtype=st.nothing()), "dtype: the strategy nothing"),
        (pst.arguments(pst.arrays("m"), options={"a": st.nothing()}), "option a: the strategy"),
        (
            pst.arguments(pst.arrays("m"), tuning={"block": st.sampled_from([])}),
            "tuning block: the strategy cannot be used: Cannot sample from a length-zero",
        ),
        (pst.arrays("m", dims={"m": st.integers(max_value=-1)}), r"what dims\['m'\] drew must be"),
    ],
)
def test_strategies_without_a_draw_are_named(strategy, message):
    with pytest.raises(SpecError, match=message):
        choose(strategy, seed=0, examples=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pst.arrays("m n; m < n, n < m"), "no sizes satisfy m < n, n < m within"),
        (lambda: pst.arrays("m n; m < n", dims={"m": [8], "n": [8]}), "no sizes satisfy m < n"),
        (lambda: pst.arrays("m", dims={"m": range(10**12)}), "lists 1000000000000 sizes; list"),
        (lambda: pst.arrays("m", dims={"m": []}), r"dims\['m'\] is empty"),
    ],
)
def test_domains_of_no_draw_or_too_many_are_refused_at_once(make, message):
    with pytest.raises(SpecError, match=message):
        make()
