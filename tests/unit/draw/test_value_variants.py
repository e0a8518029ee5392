"""A draw stands for several calls, unless somebody looked at its values."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.draw.arguments import MOST_VARIANTS, variants
from pytest_pallas.draw.arrays import MAX_SEED, draw_once
from pytest_pallas.draw.values import generate

ARRAYS = pst.arrays("m k, k", around=8, dtype="float32", values=("integers", "normal", "wide"))


def drawn_from(strategy):
    """What a strategy draws, as fuzzing sees it."""
    found = []

    @hypothesis.settings(max_examples=1, database=None)
    @hypothesis.seed(0)
    @hypothesis.given(strategy)
    def collect(drawn):
        found.append(drawn)

    collect()
    return found[-1]


def test_same_shapes_other_values():
    drawn = drawn_from(ARRAYS)
    others = list(variants(drawn))
    assert len(others) == MOST_VARIANTS - 1
    for other in others:
        assert [x.shape for x in other] == [x.shape for x in drawn]
        assert {**other.recipe, "values": 0, "seed": 0} == {**drawn.recipe, "values": 0, "seed": 0}
    assert len({repr(call) for call in [drawn, *others]}) == MOST_VARIANTS
    assert {other.recipe["values"] for other in others[:2]} | {drawn.recipe["values"]} == {
        "integers",
        "normal",
        "wide",
    }


def test_each_is_made_by_its_recipe():
    for other in variants(drawn_from(ARRAYS)):
        recipe = other.recipe
        assert 0 <= recipe["seed"] <= MAX_SEED
        for index, array in enumerate(other):
            again = generate(
                recipe["values"], array.shape, array.dtype, seed=recipe["seed"], index=index
            )
            assert array.tobytes() == again.tobytes()


def test_calls_keep_options_and_what_comes_after_the_arrays():
    strategy = pst.arguments(
        ARRAYS,
        then=lambda drawn: {"lengths": pst.lengths(drawn.recipe["m"], max_length=5)},
        options={"causal": st.booleans()},
        tuning={"block": 8},
    )
    drawn = drawn_from(strategy)
    others = list(variants(drawn))
    assert len(others) == MOST_VARIANTS - 1
    for other in others:
        assert other.options == drawn.options
        assert other.tuning == drawn.tuning
        assert other.args[2] is drawn.args[2]
        assert other.recipe["lengths"] == drawn.recipe["lengths"]
    assert len({other.args[0].tobytes() for other in others}) == MOST_VARIANTS - 1


@pytest.mark.parametrize(
    "strategy",
    [
        ARRAYS.filter(lambda drawn: drawn[0].any()),
        ARRAYS.filter(lambda drawn: all(np.isfinite(x).all() for x in drawn)),
        ARRAYS.map(lambda drawn: (drawn[0], 2 * drawn[1])),
        pst.arguments(ARRAYS).filter(lambda call: call.args[0].any()),
        pst.arguments(ARRAYS, options=lambda drawn: {"total": float(drawn[0].sum())}),
        st.tuples(st.integers(0, 3)),
    ],
    ids=["filter", "iterate", "map", "arguments", "options", "other"],
)
def test_none_where_the_values_were_looked_at(strategy):
    assert not list(variants(drawn_from(strategy)))


def test_a_recipe_may_be_looked_at():
    strategy = pst.arguments(ARRAYS.filter(lambda drawn: drawn.recipe["m"] > 1))
    assert len(list(variants(drawn_from(strategy)))) == MOST_VARIANTS - 1


def test_a_draw_is_a_tuple_still():
    drawn = draw_once(ARRAYS)
    first, second = drawn.args
    assert first.shape[1] == second.shape[0]
