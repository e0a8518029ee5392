import numpy as np
import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from pytest_pallas import SpecError
from pytest_pallas.draw.sizes import SMALL
from pytest_pallas.strategies import dims, parse

#: To explain a failure takes longer than to shrink it.
PHASES = [Phase.generate, Phase.shrink]


MATMUL = "m k, k n"
EDGES = {1, 127, 128, 129, 255, 256, 257}


def sizes_of(drawn, name):
    return {sizes[name] for sizes in drawn}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("shapes", ["m", MATMUL, "b q d, b k d"])
def test_every_boundary_of_every_dim_within_100_examples(draws, shapes, number):
    drawn = draws(dims(shapes, around=128), number=number)
    for name in parse(shapes).names:
        assert sizes_of(drawn, name) >= EDGES


def test_several_tiles_give_the_boundaries_of_each(draws):
    drawn = draws(dims("m", around=(8, 128)))
    assert sizes_of(drawn, "m") == {1, 7, 8, 9, 15, 16, 17} | EDGES


def test_a_pool_has_primes_and_little_else(draws):
    found = sizes_of(draws(dims("m", around=128)), "m")
    assert found - EDGES == {7, 193}


def test_three_tiles_only_if_asked_for(draws):
    assert max(sizes_of(draws(dims("m", around=8)), "m")) == 17
    found = sizes_of(draws(dims("m", around=8, max_dim=100)), "m")
    assert {24, 25} <= found
    assert max(found) == 25


def test_a_tile_of_one(draws):
    assert sizes_of(draws(dims("m", around=1)), "m") == {1, 2, 3}


def test_tiles_by_name_and_small_sizes_for_the_rest(draws):
    drawn = draws(dims(MATMUL, around={"m": 8, "k": (16, 32)}))
    assert sizes_of(drawn, "m") >= {1, 7, 8, 9, 15, 16, 17}
    assert sizes_of(drawn, "k") >= {15, 16, 17, 31, 32, 33, 63, 64, 65}
    assert sizes_of(drawn, "n") == set(SMALL)


def test_multiples_are_one_two_or_three_tiles(draws):
    drawn = draws(dims(MATMUL, around=8, multiple_of={"k": 128}))
    assert sizes_of(drawn, "k") == {128, 256, 384}
    assert 7 in sizes_of(drawn, "m")
    assert sizes_of(draws(dims("m", multiple_of=8, max_dim=16)), "m") == {8, 16}
    assert sizes_of(draws(dims("m", multiple_of=8, min_dim=16)), "m") == {16, 24}


def test_explicit_sizes_are_the_only_ones(draws):
    explicit = {"m": 5, "k": [128, 64], "n": st.integers(20, 22)}
    drawn = draws(dims(MATMUL, dims=explicit, around=16, max_dim=16))
    assert sizes_of(drawn, "m") == {5}
    assert sizes_of(drawn, "k") == {64, 128}
    assert sizes_of(drawn, "n") == {20, 21, 22}
    assert all(list(sizes) == ["m", "k", "n"] for sizes in drawn)


def test_numpy_integers_are_integers(draws):
    assert sizes_of(draws(dims("m", dims={"m": np.int32(3)})), "m") == {3}


def test_max_dim_and_min_dim(draws):
    found = sizes_of(draws(dims("m", min_dim=4, max_dim=11)), "m")
    assert found == {4, 5, 7, 8, 11}
    assert sizes_of(draws(dims("m", around=8, max_dim=8)), "m") == {1, 3, 7, 8}
    assert 2 in sizes_of(draws(dims("m", around=8, min_dim=2)), "m")


def test_empty_only_if_asked_for(draws):
    assert 0 not in sizes_of(draws(dims("m", around=8)), "m")
    for kwargs in ({}, {"around": 8}, {"multiple_of": 8}):
        assert 0 in sizes_of(draws(dims("m", min_dim=0, **kwargs)), "m")


def test_most_draws_have_different_dims_but_not_all(draws):
    drawn = draws(dims(MATMUL, around=128))
    different = sum(len(set(sizes.values())) == 3 for sizes in drawn)
    assert 75 <= different < 100


def test_dims_that_cannot_differ_are_equal(draws):
    assert draws(dims("m k", dims={"m": 4, "k": 4})) == [{"m": 4, "k": 4}]


def test_a_hundred_draws_have_few_shapes(draws):
    # Nine sizes for each of three dims make 729 shapes, of which 100 examples saw over 90.
    drawn = draws(dims(MATMUL, around=128))
    assert len({tuple(sizes.values()) for sizes in drawn}) <= 50


def test_same_seed_same_draws(draws):
    strategies = [dims(MATMUL, around=128) for _ in range(2)]
    first, again = (draws(strategy, number=5) for strategy in strategies)
    assert first == again
    assert first != draws(strategies[0], number=6)


@pytest.mark.parametrize("shapes", ["b h q d", "x y, z w x, ()"])
def test_no_array_exceeds_the_budget_and_boundaries_stay(draws, shapes):
    strategy = dims(shapes, around=16, max_elements=2_000)
    drawn = draws(strategy, 300)
    for sizes in drawn:
        for array in parse(shapes).arrays:
            assert np.prod([sizes[name] for name in array]) <= 2_000
    for name in parse(shapes).names:
        assert sizes_of(drawn, name) >= {1, 15, 16, 17, 31, 32, 33}


def test_budget_with_a_strategy_for_a_dim(draws):
    strategy = dims("m k", dims={"k": st.integers(1, 6)}, around=16, max_elements=100)
    drawn = draws(strategy)
    assert all(sizes["m"] * sizes["k"] <= 100 for sizes in drawn)
    assert 33 in sizes_of(drawn, "m")


def test_a_strategy_that_is_always_over_budget():
    strategy = dims("m k", dims={"k": st.just(200)}, max_elements=100)
    with pytest.raises(Unsatisfiable):
        find(strategy, lambda _: True, settings=settings(database=None))


def simplest(strategy, holds):
    quiet = settings(database=None, max_examples=500, phases=PHASES)
    return find(strategy, holds, settings=quiet)


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        (lambda sizes: True, {"m": 1, "k": 1, "n": 1}),
        (lambda sizes: sizes["k"] > 128, {"m": 1, "k": 129, "n": 1}),
        (lambda sizes: sizes["k"] % 128 > 1, {"m": 1, "k": 7, "n": 1}),
        (lambda sizes: sizes["m"] >= 128 and sizes["n"] > 1, {"m": 128, "k": 1, "n": 7}),
        (lambda sizes: sizes["m"] != sizes["n"], None),
    ],
)
def test_shrinks_dim_by_dim(holds, expected):
    found = simplest(dims(MATMUL, around=128), holds)
    if expected is None:
        assert sorted(found.values()) == [1, 1, 7]
    else:
        assert found == expected


def test_shrinks_to_one_and_not_to_empty():
    assert simplest(dims("m k", min_dim=0), lambda sizes: True) == {"m": 1, "k": 1}
    assert simplest(dims("m", dims={"m": [3, 2]}), lambda sizes: True) == {"m": 2}


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"around": 0}, r"^around must be an integer of at least 1, not 0"),
        ({"around": "128"}, r"^around must be an integer"),
        ({"around": 1.5}, r"^around must be an integer"),
        ({"around": True}, r"^around must be an integer"),
        ({"around": ()}, r"^around is empty"),
        ({"around": {"m": 0}}, r"^around\['m'\] must be an integer"),
        ({"around": {"z": 8}}, r"^around: there is no dim 'z'.*m, k, n"),
        ({"around": {"k": 8}, "multiple_of": {"k": 8}}, r"around already gives.*'k'"),
        ({"multiple_of": {"k": 8}, "dims": {"k": 8}}, r"multiple_of already gives.*'k'"),
        ({"multiple_of": 64, "max_dim": 32}, r"^multiple_of: no size of \[64, 128, 192\]"),
        ({"around": 64, "max_dim": 32}, r"^around: max_dim=32 is smaller than the tile 64"),
        ({"dims": [3]}, r"^dims must be a mapping"),
        ({"dims": {"z": 3}}, r"^dims: there is no dim 'z'"),
        ({"dims": {"m": -1}}, r"^dims\['m'\] must be an integer"),
        ({"dims": {"m": []}}, r"^dims\['m'\] is empty"),
        ({"max_dim": 0}, r"^max_dim must be an integer of at least 1"),
        ({"min_dim": -1}, r"^min_dim must be an integer of at least 0"),
        ({"min_dim": 9, "max_dim": 8}, r"^max_dim must be an integer of at least 9"),
        ({"max_elements": 0}, r"^max_elements must be"),
        ({"min_dim": 9, "max_elements": 80}, r"^max_elements=80 is too small"),
    ],
)
def test_arguments_are_checked_at_once(kwargs, words):
    with pytest.raises(SpecError, match=words):
        dims(MATMUL, **kwargs)


def test_a_strategy_that_draws_no_size():
    strategy = dims("m", dims={"m": st.just("big")})
    with pytest.raises(SpecError, match=r"what dims\['m'\] drew"):
        simplest(strategy, lambda _: True)


@pytest.mark.parametrize("size", [128, 257])
def test_all_dims_at_one_tile_and_all_at_their_largest(draws, size):
    assert dict.fromkeys("mkn", size) in draws(dims(MATMUL, around=128))
