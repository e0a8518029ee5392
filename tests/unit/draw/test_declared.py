"""What strategies declare, and the words of what they draw."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.draw.arguments import SEVERAL, aspects, keyword_kind
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.record import Aspect

EDGES = ("tile-1", "tile", "tile+1", "2 tiles", "2 tiles+1")


def declared(strategy):
    """The words of each aspect, by its text."""
    return {str(aspect): words for aspect, words in draw_once(strategy).declared.choices.items()}


def all_aspects(strategy, draws):
    """The words that some draws had, by aspect."""
    found = {}

    @seed(0)
    @settings(max_examples=draws, database=None, deadline=None)
    @given(strategy)
    def collect(drawn):
        for aspect, word in aspects(drawn):
            found.setdefault(str(aspect), set()).add(word)

    collect()
    return found


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (("one", "ragged", *EDGES), {"around": 16}),
        (("one", "empty", "ragged", *EDGES), {"around": 16, "min_dim": 0}),
        (("one", "ragged", "tile-1", "tile", "tile+1"), {"around": 64, "max_dim": 65}),
        (("one", *EDGES, "3 tiles", "ragged"), {"around": 16, "max_dim": 100}),
        (("tile", "2 tiles", "3 tiles"), {"multiple_of": 8}),
        (("one", "prime", "other"), {}),
        (("8", "40", "64"), {"dims": {"m": [64, 8, 40]}}),
        (("fixed",), {"dims": {"m": 64}}),
    ],
)
def test_kinds_of_a_dim(words, sizes):
    found = declared(pst.arrays("m", **sizes))["dim m"]
    assert (len(found), set(found)) == (len(words), set(words))


def test_several_tiles_are_named():
    """A size is named after the edge of the fewest tiles: 31 is 32-1, not 2*16-1."""
    words = declared(pst.arrays("m", around=[16, 32]))["dim m"]
    assert words == (
        *("one", "16-1", "16", "16+1", "32-1", "32", "32+1"),
        *("ragged", "2*32"),
    )


def test_sizes_of_a_strategy_of_ones_own_are_not_declared():
    arrays = pst.arrays("m n", around=8, dims={"m": st.integers(1, 4)})
    assert set(declared(arrays)) == {"dtype", "values", "dim n"}


def test_what_the_budget_forbids_is_not_declared():
    """Of 2-byte elements fit twice as many; dims of what may be drawn with any dtype count."""
    words = declared(pst.arrays("m 8", around=8, dtype="float32", max_bytes=300))
    assert words["dim m"] == ("one", "ragged", "tile-1", "tile", "tile+1")
    words = declared(pst.arrays("m 8", around=8, dtype=pst.floats(), max_bytes=300))
    assert words["dim m"][-2:] == ("2 tiles", "2 tiles+1")


def test_what_constraints_forbid_is_not_declared():
    words = declared(pst.arrays("m n; m <= 8, n = 2*m", around={"m": 8}))
    assert words["dim m"] == ("one", "ragged", "tile-1", "tile")
    assert "dim n" not in words  # computed


def test_dtypes_are_declared_if_they_are_known():
    mixed = ("float32, float32", "bfloat16, bfloat16", "bfloat16, float32", "float32, bfloat16")
    each = ("float32", pst.dtypes("int8", "int32"))
    anything = st.sampled_from(["float32", "int8"]).filter(bool)
    assert declared(pst.arrays("m", dtype="int8"))["dtype"] == ("int8",)
    assert declared(pst.arrays("m", dtype=pst.floats()))["dtype"] == ("float32", "bfloat16")
    assert declared(pst.arrays("m, m", dtype=pst.dtype_pairs()))["dtype"] == mixed
    assert declared(pst.arrays("m, m", dtype=each))["dtype"] == ("float32, int8", "float32, int32")
    assert "dtype" not in declared(pst.arrays("m", dtype=anything))


def test_value_classes_are_declared():
    arrays = pst.arrays("m", values=["normal", "tiny"])
    assert set(declared(arrays)["values"]) == {"normal", "tiny"}


def test_options_and_tuning():
    call = pst.arguments(
        pst.arrays("m", dtype="int8"),
        options={
            "causal": st.booleans(),
            "scale": st.none() | st.sampled_from([0.5, 2.0]),
            "activation": st.sampled_from([np.tanh, np.cosh]),
            "shift": st.integers(0, 3),
            "mode": "fast",
        },
        tuning=lambda drawn: {"block": st.sampled_from([8, 16]).map(lambda size: size)},
    )
    found = draw_once(call).declared
    words = {str(a): w for a, w in found.choices.items() if a.role in ("option", "tuning")}
    assert words == {
        "option causal": ("False", "True"),
        "option scale": ("None", "0.5", "2.0"),
        "option activation": ("tanh", "cosh"),
    }
    assert found.keyword_kinds[Aspect("option", "scale")] == {"None", "0.5", SEVERAL}


def test_kinds_of_keyword_arguments():
    """Block sizes are of one kind; a word that reads like a number is none."""
    values = (2, 512, np.float32(2), 1, True, "2", np.tanh, None, np.dtype("int8"))
    assert [keyword_kind(value) for value in values] == (
        [SEVERAL, SEVERAL, SEVERAL, "1", "True", "2", "tanh", "None", "int8"]
    )


def test_keywords_may_depend_on_what_was_drawn():
    call = pst.arguments(
        pst.arrays("m", dims={"m": [4, 8]}),
        tuning=lambda drawn: {"block": st.sampled_from([2, drawn.recipe["m"]])},
    )
    assert declared(call)["tuning block"] == ("2", "4")


CALL = pst.arguments(
    pst.arrays("m k, k n, ()", dtype=pst.floats(), around={"m": 8, "k": [8, 32]}, min_dim=0),
    options={"causal": st.booleans()},
    tuning={"block": st.sampled_from([8, 16])},
)


def test_draws_have_the_words_that_are_declared():
    """All of them, within 200 draws, and no others."""
    words = {aspect: set(words) for aspect, words in declared(CALL).items()}
    assert all_aspects(CALL, 200) == words


def test_a_size_from_elsewhere_is_other():
    drawn = draw_once(pst.arrays("m", around=8))
    moved = pst.Drawn(drawn.args, {**drawn.recipe, "m": 1000}, declared=drawn.declared)
    assert dict(aspects(moved))[Aspect("dim", "m")] == "other"


def test_tuples_survive_pickling():
    drawn = pst.Drawn((1,), {"m": 8}, declared=draw_once(pst.arrays("m", around=8)).declared)
    assert dict(aspects(pickle.loads(pickle.dumps(drawn)))) == {Aspect("dim", "m"): "tile"}


def test_without_a_recipe_there_is_nothing():
    assert list(aspects(pst.Arguments((1,), {"causal": True}))) == []
