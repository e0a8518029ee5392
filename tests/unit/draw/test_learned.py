"""Sizes around the blocks of a kernel, for dims about which a strategy says nothing."""

from __future__ import annotations

import jax
import pytest

from pytest_pallas import strategies as pst
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.dims import STEP, around, probing


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
