"""Dims that must satisfy constraints, and budgets in bytes."""

from random import Random

import numpy as np
import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.draw import dims as learned

#: To explain a failure takes longer than to shrink it.
PHASES = [Phase.generate, Phase.shrink]


ATTENTION = "b h q d, b g k d; h = g*r, q <= k"


def sizes_of(drawn, name):
    return {sizes[name] for sizes in drawn}


@pytest.mark.parametrize("number", range(3))
def test_constraints_hold_and_boundaries_stay(draws, number):
    strategy = pst.dims(ATTENTION, around={"q": 16, "k": 16}, dims={"g": [1, 2, 3], "r": [1, 2, 4]})
    drawn = draws(strategy, number=number)
    assert len(drawn) == 100
    for sizes in drawn:
        assert list(sizes) == ["b", "h", "q", "d", "g", "k", "r"]
        assert sizes["h"] == sizes["g"] * sizes["r"]
        assert sizes["q"] <= sizes["k"]
    for name in ("q", "k"):
        assert sizes_of(drawn, name) >= {1, 15, 16, 17, 31, 32, 33}
    assert sizes_of(drawn, "h") >= {1, 2, 3, 4, 6, 8, 12}
    assert any(sizes["q"] == sizes["k"] > 1 for sizes in drawn)


def test_a_divisibility_constraint_holds_for_all_draws(draws):
    drawn = draws(pst.dims("m k; k % 8 = 0", around=16))
    assert sizes_of(drawn, "k") == {16, 32}
    assert sizes_of(drawn, "m") >= {1, 15, 16, 17, 31, 32, 33}


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ("m n; n % 128 == 0", {128, 256, 384}),
        ("m n; n % 8 = 0, n % 12 = 0", {24, 48, 72}),
        ("m n; n % 128 = 0, n >= 500", {512, 640, 768}),
        ("m n; n % 128 = 1", {1, 129, 257}),
        ("m n; 64 <= n <= 80", {64, 65, 66, 79, 80}),
        ("m n; n > 5000", {5001, 5002, 5003}),
        ("m n; n >= 3", {3, 4, 5, 7, 8, 13, 17}),
        ("m n; n <= 20, n > 1", {2, 3, 4, 5, 7, 8, 13, 17, 19, 20}),
        ("m n; n // 16 = 3", {48, 49, 50}),
    ],
)
def test_sizes_of_a_dim_without_sizes_satisfy_its_constraints(draws, shapes, expected):
    drawn = draws(pst.dims(shapes))
    assert sizes_of(drawn, "n") == expected
    assert sizes_of(drawn, "m") == {1, 2, 3, 4, 5, 7, 8, 13, 17}


def test_the_sizes_of_a_constraint_keep_to_the_limits(draws):
    drawn = draws(pst.dims("n; n % 128 = 0", max_dim=300))
    assert sizes_of(drawn, "n") == {128, 256}
    drawn = draws(pst.dims("n; n % 128 = 0", min_dim=0))
    assert sizes_of(drawn, "n") == {0, 128, 256, 384}


def test_learned_tiles_are_kept_with_a_constraint(draws):
    with learned.probing() as probe:
        draws(pst.arrays("m n; n % 128 = 0, m < 40"), 1)
    assert set(probe.sizes) == {"n"}
    drawn = draws(learned.around(pst.arrays("m n; n % 128 = 0"), {"n": (256,)}))
    assert {each.recipe["n"] for each in drawn} == {128, 256, 384, 512}


def test_a_size_that_is_said_by_name_is_not_computed(draws):
    drawn = draws(pst.dims("h, g; h = 2*g", dims={"h": [2, 8], "g": [1, 3, 4]}))
    assert {(sizes["h"], sizes["g"]) for sizes in drawn} == {(2, 1), (8, 4)}


def test_computed_sizes_keep_to_the_minimum(draws):
    assert sizes_of(draws(pst.dims("h, g; h = g - 3")), "h") == {1, 2, 4, 5, 10, 14}
    assert 0 in sizes_of(draws(pst.dims("h, g; h = g - 3", min_dim=0)), "h")


def test_constraints_with_a_strategy_for_a_dim(draws):
    drawn = draws(pst.dims("q, k; q < k", dims={"k": st.integers(5, 9)}))
    assert all(sizes["q"] < sizes["k"] <= 9 for sizes in drawn)
    assert len(drawn) > 50


@pytest.mark.parametrize("unequal", [True, ("m", "k", "n")])
def test_unequal_dims_never_have_the_same_size(draws, unequal):
    drawn = draws(pst.dims("m k, k n", around=128, unequal=unequal), 300)
    assert all(len(set(sizes.values())) == 3 for sizes in drawn)
    assert sizes_of(drawn, "n") >= {1, 127, 128, 129, 255, 256, 257}


def test_unequal_dims_by_name(draws):
    drawn = draws(pst.dims("q d, k d", dims={"q": [1, 2], "k": [1, 2], "d": 1}, unequal="qk"))
    assert {(sizes["q"], sizes["k"]) for sizes in drawn} == {(1, 2), (2, 1)}


@pytest.mark.parametrize(
    ("shapes", "holds", "expected"),
    [
        ("q, k; q < k", lambda s: True, {"q": 1, "k": 7}),
        ("q, k; q < k", lambda s: s["q"] > 100, {"q": 127, "k": 128}),
        ("h, g; h = g*r", lambda s: True, {"h": 1, "g": 1, "r": 1}),
        ("h, g; h = g*r", lambda s: s["h"] > 200, {"h": 255, "g": 1, "r": 255}),
        ("m k; m != k", lambda s: s["k"] > 127, {"m": 1, "k": 128}),
    ],
)
def test_shrinks_dim_by_dim(shapes, holds, expected):
    strategy = pst.dims(shapes, around=128)
    quiet = settings(database=None, max_examples=500, phases=PHASES)
    assert find(strategy, holds, settings=quiet, random=Random(0)) == expected


def test_the_recipe_has_sizes_that_only_constraints_have(draws):
    for drawn in draws(pst.arrays("h d, g d; h = g*r"), 10):
        assert drawn.recipe["h"] == drawn.recipe["g"] * drawn.recipe["r"] == drawn[0].shape[0]


@pytest.mark.parametrize("shapes", ["m k, k n", "m k, k n; m <= n"])
@pytest.mark.parametrize("number", range(3))
def test_bytes_of_all_arrays_together(draws, shapes, number):
    strategy = pst.arrays(
        shapes, around=32, max_bytes=12_000, dtype=pst.dtypes("float32", "int8"), unequal=("m", "k")
    )
    drawn = draws(strategy, 150, number=number)
    largest = {
        name: max(sum(a.nbytes for a in d) for d in drawn if d.recipe["dtype"] == name)
        for name in ("float32", "int8")
    }
    assert 8_000 < largest["float32"] <= 12_000
    assert max(d[0].size + d[1].size for d in drawn if d.recipe["dtype"] == "int8") > 4_000
    for name in "mkn":
        assert {d.recipe[name] for d in drawn} >= {31, 32, 33}


def test_bytes_of_arrays_of_different_dtypes(draws):
    strategy = pst.arrays("m, n", dtype=("float64", "int8"), around=32, max_bytes=300)
    drawn = draws(strategy)
    assert all(sum(array.nbytes for array in d) <= 300 for d in drawn)
    assert {d.recipe["n"] for d in drawn} >= {31, 32, 33, 63, 64, 65}
    assert {d[0].dtype for d in drawn} == {np.dtype("float64")}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.dims("m; m > 9, m < 5"), r"no sizes satisfy m > 9, m < 5 within max_elements"),
        (lambda: pst.dims("m; m > 9", around=3), "no sizes satisfy m > 9"),
        (
            lambda: pst.dims("m", dims={"m": st.integers(1)}),
            r"integers\(min_value=1\), which draws sizes without end; .* st.integers\(1, 256\)",
        ),
        (lambda: pst.arrays("m", dims={"m": st.integers().map(abs)}), "draws sizes without end"),
        (lambda: pst.dims("m k; m = 0*k"), "no sizes satisfy m = 0[*]k, m >= 1"),
        (lambda: pst.dims("m", unequal=("q",)), "unequal: there is no dim 'q'.* dims are m"),
        (lambda: pst.dims("m n", dims={"m": 3, "n": 3}, unequal=True), "satisfy m != n"),
        (lambda: pst.dims("m; m = 2*r", around={"x": 3}), "around: there is no dim 'x'"),
        (lambda: pst.arrays("m", max_bytes=0), "max_bytes must be"),
        (lambda: pst.arrays("8 m", max_bytes=4), "max_elements=.*, max_bytes=4 is too small"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()


def test_a_budget_that_only_one_dtype_exceeds(draws):
    with pytest.raises(SpecError, match="max_bytes=20 is too small for the smallest array"):
        draws(pst.arrays("8 m", dtype="float32", max_bytes=20), 1)


def test_shaped_checks_constraints():
    call = pst.shaped("h d, g d; h = g*r", dtype="int8", dims={"h": 4, "g": 2, "d": 8})
    assert [x.shape for x in call.args] == [(4, 8), (2, 8)]
    with pytest.raises(SpecError, match="breaks 'q < k'"):
        pst.shaped("q, k; q < k", dtype="int8", dims={"q": 4, "k": 2})
