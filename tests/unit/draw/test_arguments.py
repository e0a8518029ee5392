import copy
import pickle

import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst

ARRAYS = pst.arrays("q d, k d", around=8, dims={"d": [4, 8]})


def test_options_and_tuning(draws):
    strategy = pst.arguments(
        ARRAYS,
        options={"causal": st.booleans(), "scale": 0.5},
        tuning={"block": st.sampled_from([8, 16])},
    )
    drawn = draws(strategy)
    assert all(isinstance(call, pst.Arguments) for call in drawn)
    assert {call.options["causal"] for call in drawn} == {False, True}
    assert {call.options["scale"] for call in drawn} == {0.5}
    assert {call.tuning["block"] for call in drawn} == {8, 16}
    for call in drawn:
        assert type(call.args) is tuple
        assert call.args[0].shape == (call.recipe["q"], call.recipe["d"])


def test_functions_of_what_was_drawn(draws):
    strategy = pst.arguments(
        ARRAYS,
        options=lambda drawn: {"length": st.integers(0, drawn[0].shape[0])},
        tuning=lambda drawn: {"block": drawn.recipe["d"]},
    )
    drawn = draws(strategy)
    assert all(0 <= call.options["length"] <= call.recipe["q"] for call in drawn)
    assert any(call.options["length"] == call.recipe["q"] > 1 for call in drawn)
    assert all(call.tuning == {"block": call.recipe["d"]} for call in drawn)


def test_positional_arguments_after_the_arrays(draws, shrunk):
    strategy = pst.arguments(
        ARRAYS,
        then=lambda drawn: {
            "lengths": pst.lengths(2, max_length=drawn.recipe["k"]),
            "scale": 0.5,
        },
    )
    for call in draws(strategy, 20):
        query, key, lengths, scale = call.args
        assert query.shape == (call.recipe["q"], call.recipe["d"])
        assert lengths.max() <= key.shape[0] == call.recipe["k"]
        assert (scale, call.options) == (0.5, {})
    text = shrunk(strategy, lambda call: call.recipe["k"] > 8)
    assert "seed=0, lengths=[1,1], scale=0.5)" in text


def test_different_arrays_have_different_names():
    # What was tried before is known by its name.
    short = [pst.Arguments((), {"ids": np.array(ids)}) for ids in ([1, 2], [2, 1])]
    assert "ids=[1,2]" in repr(short[0])
    long = [pst.Arguments((), {"mask": np.arange(90) > at}) for at in (3, 4)]
    assert "mask=bool[90]#" in repr(long[0])
    assert repr(short[0]) != repr(short[1])
    assert repr(long[0]) != repr(long[1])


def test_adds_to_arguments_that_were_drawn(draws):
    inner = pst.arguments(ARRAYS, options={"a": 1}, tuning={"t": 2})
    call = draws(pst.arguments(inner, options={"b": 3}), 1)[0]
    assert (call.options, call.tuning) == ({"a": 1, "b": 3}, {"t": 2})


def test_any_strategy_for_a_tuple(draws):
    call = draws(pst.arguments(st.tuples(st.just(1)), options={"x": 2}), 1)[0]
    assert (call.args, call.options) == ((1,), {"x": 2})


def test_shrinks_and_prints_in_one_line(shrunk):
    strategy = pst.arguments(ARRAYS, options={"causal": st.booleans()}, tuning={"block": 8})
    text = shrunk(strategy, lambda call: call.options["causal"])
    assert (
        "args=Arguments(q=1, d=4, k=1, dtype=float32, values=integers, seed=0, "
        "options=(causal=True), tuning=(block=8))" in text
    )


def test_repr_without_a_recipe_shows_shapes_and_no_elements():
    args = (np.zeros((3, 4), np.float32), np.int32(5), [1], 2, None)
    described = "float32[3, 4], int32[], list, 2, None"
    assert repr(pst.Drawn(args)) == f"Drawn({described})"
    assert repr(pst.Arguments(args)) == f"Arguments({described})"


def test_repr_of_long_options_is_short():
    call = pst.Arguments((), options={"mask": np.ones((9, 9)), "text": "x" * 500})
    assert "mask=float64[9, 9]" in repr(call)
    assert len(repr(call)) < 150


@pytest.mark.parametrize("again", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_copies_keep_the_recipe(again):
    drawn = pst.Drawn((np.arange(3),), {"m": 3})
    other = again(drawn)
    assert other.recipe == {"m": 3}
    assert other[0].tolist() == [0, 1, 2]
    assert repr(again(pst.as_arguments(drawn))) == "Arguments(m=3)"


def test_drawn_is_a_tuple_for_everybody_else():
    drawn = pst.Drawn((1, 2), {"m": 3})
    assert drawn == (1, 2)
    with pytest.raises(TypeError):
        drawn.recipe["m"] = 4


def test_a_tuple_becomes_arguments_and_a_list_is_an_error():
    call = pst.Arguments((1,))
    assert pst.as_arguments(call) is call
    assert pst.as_arguments((1, 2)).args == (1, 2)
    assert pst.as_arguments(pst.Drawn((1,), {"m": 1})).recipe == {"m": 1}
    with pytest.raises(SpecError, match="drew a list"):
        pst.as_arguments([1])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"options": [1]}, "^options must be a mapping"),
        ({"then": [1]}, "^then must be a mapping"),
        ({"tuning": st.booleans()}, "^tuning must be a mapping"),
        ({"options": {"a b": 1}}, "^options: 'a b' cannot be the name"),
        ({"tuning": {3: 1}}, "^tuning: 3 cannot be the name"),
        ({"options": {"x": 1}, "tuning": {"x": 1}}, "^options and tuning both have x"),
    ],
)
def test_arguments_are_checked_at_once(kwargs, words):
    with pytest.raises(SpecError, match=words):
        pst.arguments(ARRAYS, **kwargs)
    if "options" in kwargs:
        with pytest.raises(SpecError, match=r"^arrays must be a strategy"):
            pst.arguments((np.zeros(3),))


def test_what_functions_return_is_checked(draws):
    with pytest.raises(SpecError, match=r"^options must be a mapping"):
        draws(pst.arguments(ARRAYS, options=lambda drawn: 3), 1)
    with pytest.raises(SpecError, match=r"^then: the recipe has a 'q' already"):
        draws(pst.arguments(ARRAYS, then={"q": 3}), 1)
    with pytest.raises(SpecError, match=r"^options and tuning both have x"):
        draws(pst.arguments(ARRAYS, options=lambda drawn: {"x": 1}, tuning={"x": 2}), 1)


def test_functions_are_called_by_their_names():
    """Addresses differ between processes; functions without a name are told apart by theirs."""
    call = pst.Arguments((), options={"activation": jax.nn.silu})
    assert repr(call) == f"Arguments(options=(activation={jax.nn.silu.__module__}.silu))"
    one, two = (pst.Arguments((), options={"f": lambda x, n=n: x * n}) for n in (1, 2))
    assert repr(one) != repr(two)
