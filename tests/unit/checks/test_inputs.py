"""What calls covered of the inputs that were declared."""

from __future__ import annotations

import json

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.checks.inputs import inputs_of, to_json
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.record import DTYPE, VALUES, Aspect, aspects_from_json
from pytest_pallas.run.result import Result

X, Y = np.ones((8, 128), np.float32), np.ones((), np.int32)


def drawn_call(**sizes):
    return draw_once(
        pst.arguments(
            pst.arrays("m", dtype=pst.floats(), **sizes), options={"causal": st.booleans()}
        )
    )


def test_a_call_without_a_recipe():
    inputs = inputs_of(pst.Arguments(({"x": X}, Y, 3), {"causal": True}))
    assert inputs.shapes == "8x128 ()"
    assert inputs.choices == ((DTYPE, "float32, int32"),)
    assert to_json([inputs]) == {
        "pairs": [0, 0],
        "triples": [0, 0],
        "shapes": ["8x128 ()"],
        "signatures": 1,
        "dtypes": ["float32", "int32"],
        "tried": [{"role": "dtype", "name": "", "words": ["float32, int32"]}],
        "never": [],
    }


def test_shapes_may_stand_for_arrays():
    call = pst.Arguments((jax.ShapeDtypeStruct((4, 2), np.int8),))
    assert to_json([inputs_of(call)])["shapes"] == ["4x2"]


def test_a_call_without_arrays_has_no_shape():
    plain = to_json([inputs_of(pst.Arguments((), {"rows": 3}))])
    assert (plain["shapes"], plain["tried"]) == ([], [])


def test_no_calls_have_no_inputs():
    assert to_json([]) == {}


def test_tried_and_never_drawn():
    call = drawn_call(multiple_of=8)
    plain = to_json([inputs_of(call)])
    assert json.loads(json.dumps(plain)) == plain == {
        "pairs": [6, 44],
        "triples": [4, 76],
        "shapes": ["8"],
        "signatures": 1,
        "dtypes": ["float32"],
        "tried": [
            {"role": "dtype", "name": "", "words": ["float32"]},
            {"role": "values", "name": "", "words": ["integers"]},
            {"role": "dim", "name": "m", "words": ["tile"]},
            {"role": "option", "name": "causal", "words": ["False"]},
        ],
        "never": [
            {"role": "values", "name": "", "words": ["normal", "ties", "peaks"]},
            {"role": "dtype", "name": "", "words": ["bfloat16"]},
            {"role": "dim", "name": "m", "words": ["2 tiles", "3 tiles"]},
            {"role": "option", "name": "causal", "words": ["True"]},
        ],
    }  # fmt: skip


def test_what_one_strategy_declares_another_may_draw():
    """As in ``one_of``: words are in the order in which they were declared."""
    one, other = drawn_call(dims={"m": [3, 5]}), drawn_call(dims={"m": [5, 7]})
    plain = to_json([inputs_of(other), inputs_of(one)])
    assert aspects_from_json(plain["tried"])[Aspect("dim", "m")] == ("5", "3")
    assert aspects_from_json(plain["never"])[Aspect("dim", "m")] == ("7",)


def test_a_drawn_tuple_as_an_argument():
    drawn = pst.Drawn((X,), {"dtype": "float32", "values": "normal"})
    tried = to_json([inputs_of(pst.Arguments((drawn,)))])["tried"]
    assert aspects_from_json(tried) == {DTYPE: ("float32",), VALUES: ("normal",)}


def test_signatures_tell_options_and_dtypes_apart():
    calls = [
        pst.Arguments((X,)),
        pst.Arguments((X + 1,)),
        pst.Arguments((X,), {"causal": True}),
        pst.Arguments((X,), {}, {"block": 8}),
        pst.Arguments((X.astype(np.int32),)),
        pst.Arguments(({"x": X},)),
        pst.Arguments((X, 3)),
        pst.Arguments((X, 4)),
        pst.Arguments((X, None)),
        pst.Arguments((X,), {"dtype": np.float32}),
        pst.Arguments((X,), {"word": 60 * "a" + "b"}),
        pst.Arguments((X,), {"word": 60 * "a" + "c"}),
    ]
    plain = to_json([inputs_of(call) for call in calls])
    assert (len(plain["shapes"]), plain["signatures"]) == (1, 11)


def test_signatures_are_the_same_in_every_process():
    call = pst.Arguments((X, lambda x: x), {"act": jax.nn.relu, "scale": np.float32(2)})
    again = pst.Arguments((X, lambda x: x), {"act": jax.nn.relu, "scale": np.float32(2)})
    assert inputs_of(call).signature == inputs_of(again).signature
    known = inputs_of(pst.Arguments((X,), {"causal": True}, {"block_m": 8}))
    assert known.signature == "ce4354d2b3574bae"


def test_a_tally_forgets_what_was_withdrawn():
    builder = Result(kernel="k", check="c", backend="b")
    builder.begin(pst.Arguments((X,)))
    builder.begin(pst.Arguments((Y,)))
    builder.withdraw()
    assert builder.record(test="t", outcome="passed", seconds=0.0).inputs["shapes"] == ["8x128"]
