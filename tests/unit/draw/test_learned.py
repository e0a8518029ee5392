"""Sizes around the blocks of a kernel, for dims about which a strategy says nothing."""

from __future__ import annotations

import jax
import pytest

from pytest_pallas import strategies as pst
from pytest_pallas.draw.arguments import aspects, extents, larger_first
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.dims import STEP, around, probing
from pytest_pallas.draw.examples import ExampleSource, choose


def sizes(draws, strategy, name):
    return {drawn.recipe[name] for drawn in draws(strategy)}


def test_dims_without_sizes_are_drawn_around_learned_blocks(draws):
    strategy = around(pst.arrays("m n"), {"m": (128,)})
    assert {1, 127, 128, 129, 255, 256, 257} <= sizes(draws, strategy, "m")
    assert max(sizes(draws, strategy, "n")) < 20


@pytest.mark.parametrize("said", [{"around": {"m": 4}}, {"dims": {"m": [3, 5]}}])
def test_what_a_strategy_says_holds(draws, said):
    strategy = around(pst.arrays("m n", **said), {"m": (128,)})
    assert max(sizes(draws, strategy, "m")) < 20


def test_blocks_beyond_the_largest_allowed_size_are_forgotten(draws):
    strategy = around(pst.arrays("m n", max_dim=100), {"m": (128,)})
    assert max(sizes(draws, strategy, "m")) <= 100


def test_without_learned_blocks_the_same_sizes_are_drawn(draws):
    strategy = pst.arrays("m n")
    assert set(sizes(draws, around(strategy, {}), "m")) == set(sizes(draws, strategy, "m"))


def test_the_kinds_of_sizes_that_are_learned_can_be_missed():
    drawn = draw_once(around(pst.arrays("m n"), {"m": (128,)}))
    assert drawn.declared.kinds["m"][129] == "tile+1"
    assert draw_once(pst.arrays("m n")).declared.kinds["m"][17] == "prime"


class TestBuffers:
    """A kernel that uses buffers in turns needs more blocks than it has of them."""

    @pytest.mark.parametrize(("depth", "largest"), [(3, 56), (4, 72), (6, 56)])
    @pytest.mark.parametrize("tiles", [{"multiple_of": 8}, {"around": 8}])
    def test_one_size_is_of_more_tiles(self, draws, tiles, depth, largest):
        drawn = sizes(draws, around(pst.arrays("m 4", **tiles), {}, depth), "m")
        assert drawn == sizes(draws, pst.arrays("m 4", **tiles), "m") | {largest}

    def test_it_is_drawn_along_one_dim_at_a_time(self, draws):
        drawn = draws(around(pst.arrays("m n", multiple_of={"m": 8, "n": 128}), {}, 4))
        large = {(d.recipe["m"] == 72, d.recipe["n"] == 9 * 128) for d in drawn}
        assert large >= {(False, False), (True, False), (False, True)}
        strategy = around(pst.arrays("m n", multiple_of={"m": 8, "n": 128}), {}, 4)
        planned = choose(strategy, seed=0, examples=64)
        large = {(d.recipe["m"] == 72, d.recipe["n"] == 9 * 128) for d in planned.values()}
        assert large == {(False, False), (True, False), (False, True)}

    def test_learned_tiles_have_one_too(self, draws):
        assert 9 * 32 in sizes(draws, around(pst.arrays("m n"), {"m": (32,)}, 4), "m")

    @pytest.mark.parametrize(("limit", "largest"), [(16, 16), (39, 24), (40, 40), (71, 40)])
    def test_the_largest_allowed_size_holds(self, draws, limit, largest):
        strategy = around(pst.arrays("m 4", multiple_of=8, max_dim=limit), {}, 4)
        assert max(sizes(draws, strategy, "m")) == largest

    def test_listed_sizes_are_those_of_the_user(self, draws):
        strategy = around(pst.arrays("m 4", dims={"m": [8, 16]}), {}, 4)
        assert sizes(draws, strategy, "m") == {8, 16}

    def test_such_a_draw_is_among_few_examples(self):
        strategy = around(pst.arrays("m n", multiple_of={"m": 8, "n": 128}), {}, 4)
        assert any(
            "deep" in extents(drawn) for drawn in choose(strategy, seed=0, examples=3).values()
        )
        source = ExampleSource(strategy)
        (first,) = source.choose(0, 1, lambda drawn: larger_first(None, drawn)).values()
        assert extents(first) == {"deep", "several"}
        assert "9 tiles" in {word for aspect, word in aspects(first) if aspect.role == "dim"}


class TestProbe:
    def test_arrays_are_abstract_and_their_dims_differ(self):
        with probing() as probe:
            x, w, b = draw_once(pst.arrays("m k, k n, n", dtype="float32")).args
        assert sorted(probe.sizes.values()) == [STEP, 2 * STEP, 3 * STEP]
        assert x.shape == (probe.sizes["m"], probe.sizes["k"])
        assert w.shape == (*x.shape[1:], *b.shape)
        assert isinstance(x, jax.ShapeDtypeStruct)

    def test_dims_with_sizes_keep_these(self):
        with probing() as probe:
            (x,) = draw_once(pst.arrays("m n", around={"n": 8})).args
        assert list(probe.sizes) == ["m"]
        assert x.shape == (STEP, 8)

    def test_sizes_obey_constraints(self):
        with probing() as probe:
            q, k = draw_once(pst.arrays("h q, g k; h = 4*g, k < q")).args
        assert q.shape[0] == 4 * k.shape[0]
        assert probe.sizes["k"] < probe.sizes["q"]

    def test_what_is_drawn_afterwards_is_real(self):
        strategy = pst.arrays("m n")
        with probing():
            draw_once(strategy)
        assert draw_once(strategy).args[0].nbytes
