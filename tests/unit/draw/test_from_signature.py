"""``from_signature``: calls read off jaxtyping's annotations."""

# ruff: noqa: F722, F821 - shapes are no forward references

import enum
import functools
import math
from typing import Literal

import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst

jaxtyping = pytest.importorskip("jaxtyping", reason="jaxtyping is not installed")

from jaxtyping import Array, BFloat16, Bool, Float, Int, Key, Shaped, UInt  # noqa: E402


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


def matmul(
    a: Float[Array, "m k"],
    b: Float[Array, "k n"],
    *,
    transpose: bool = False,
    precision: Literal["default", "highest"] = "default",
    mode: Mode = Mode.SUM,
    block: int = 128,
) -> Float[Array, "m n"]: ...


def mixed(
    x: BFloat16[Array, "b 64 _"],
    mask: Bool[Array, "b _"],
    lengths: Int[Array, " b"],
    scale: Float[Array, ""],
    shifted: "UInt[Array, 'rows=3 b+1']",
): ...


def test_dims_are_shared_by_name(draws):
    drawn = draws(pst.from_signature(matmul, around=8), 200)
    for call in drawn:
        a, b = call.args
        sizes = call.recipe
        assert (a.shape, b.shape) == ((sizes["m"], sizes["k"]), (sizes["k"], sizes["n"]))
        assert a.dtype == b.dtype
    assert {call.args[0].dtype.name for call in drawn} == {"float32", "bfloat16"}
    assert {call.recipe["k"] for call in drawn} >= {1, 7, 8, 9, 15, 16, 17}


def test_annotated_options_are_drawn(draws):
    strategy = pst.from_signature(matmul, tuning={"block": st.sampled_from([64, 128])})
    drawn = draws(strategy)
    assert {call.options["transpose"] for call in drawn} == {False, True}
    assert {call.options["precision"] for call in drawn} == {"default", "highest"}
    assert {call.options["mode"] for call in drawn} == set(Mode)
    assert {call.tuning["block"] for call in drawn} == {64, 128}
    assert all(set(call.options) == {"transpose", "precision", "mode"} for call in drawn)


def test_what_is_said_goes_before_the_annotation(draws):
    said = {"options": {"transpose": True}, "tuning": {"precision": "highest"}}
    (call,) = draws(pst.from_signature(matmul, **said), 1)
    assert call.options.keys() == {"transpose", "mode"}
    assert call.options["transpose"] is True
    assert call.tuning == {"precision": "highest"}


def test_dims_and_dtypes_of_every_kind(draws):
    anonymous = set()
    for call in draws(pst.from_signature(mixed, around=8)):
        x, mask, lengths, scale, shifted = call.args
        b = call.recipe["b"]
        assert (x.dtype.name, x.shape[:2]) == ("bfloat16", (b, 64))
        assert (mask.dtype.name, mask.shape[0]) == ("bool", b)
        assert lengths.dtype.name in ("int32", "int8")
        assert lengths.shape == (b,)
        assert (scale.dtype.name, scale.shape) in (("float32", ()), ("bfloat16", ()))
        assert shifted.dtype.name in ("uint32", "uint8")
        assert shifted.shape == (3, b + 1)
        anonymous.add((x.shape[2], mask.shape[1]))
    assert len(anonymous) > 5
    assert any(one != other for one, other in anonymous)


def test_the_calls_satisfy_the_annotations(draws):
    for call in draws(pst.from_signature(matmul, around=8), 20):
        assert isinstance(jax.numpy.asarray(call.args[0]), Float[Array, "m k"])


def test_arguments_of_arrays(draws):
    strategy = pst.from_signature(
        matmul,
        dtype=("bfloat16", "float32"),
        dims={"k": [32, 64], "n": 5},
        around={"m": 16},
        values="onehot",
        unequal=("m", "n"),
        max_bytes=4_000,
        min_dim=0,
    )
    drawn = draws(strategy)
    assert {call.recipe["k"] for call in drawn} <= {32, 64}
    assert {call.args[0].dtype.name for call in drawn} == {"bfloat16"}
    assert {call.args[1].dtype.name for call in drawn} == {"float32"}
    assert {call.recipe["values"] for call in drawn} == {"onehot"}
    assert {call.recipe["m"] for call in drawn} >= {0, 1, 15, 16, 17}
    assert 5 not in {call.recipe["m"] for call in drawn}
    assert max(sum(a.nbytes for a in call.args) for call in drawn) <= 4_000
    few = pst.from_signature(matmul, multiple_of=8, max_dim=16, max_elements=128)
    assert {call.recipe["m"] for call in draws(few)} == {8, 16}
    assert max(math.prod(call.args[0].shape) for call in draws(few)) <= 128


def test_any_dtype_and_arrays_of_numpy(draws):
    def cast(x: Shaped[np.ndarray, "m"]): ...

    found = {call.args[0].dtype.name for call in draws(pst.from_signature(cast))}
    assert found == {"float32", "bfloat16"}
    (call,) = draws(pst.from_signature(cast, dtype="int4"), 1)
    assert call.args[0].dtype.name == "int4"


def test_partial_and_jitted_functions_have_signatures(draws):
    bound = functools.partial(matmul, precision="highest")
    (call,) = draws(pst.from_signature(bound, around=8), 1)
    assert len(call.args) == 2
    (call,) = draws(pst.from_signature(jax.jit(matmul), around=8), 1)
    assert len(call.args) == 2


def test_a_call_of_a_signature_shrinks(shrunk):
    strategy = pst.from_signature(matmul, around=8)
    text = shrunk(strategy, lambda call: call.recipe["k"] > 8 and call.options["transpose"])
    assert "m=1, k=9, n=1, dtype=float32, values=integers, seed=0" in text
    assert "transpose=True, precision='default', mode=<Mode.SUM: 1>" in text


def variadic(x: Float[Array, "*b m"]): ...
def ellipsis(x: Float[Array, "... m"]): ...
def broadcast(x: Float[Array, "#b m"]): ...
def odd(x: Float[Array, "m/2 m"]): ...
def none(x, y=1): ...
def keyword(x: Float[Array, "m"], *, y: Float[Array, "m"]): ...
def behind(x: Float[Array, "m"], scale: float = 1.0, y: Float[Array, "m"] = None): ...
def unsaid(x: Float[Array, "m"], scale: float): ...
def optional(x: Float[Array, "m"] | None): ...
def keys(x: Float[Array, "m"], key: Key[Array, ""]): ...
def taken(x: Float[Array, "dtype"]): ...
def unknown(x: "Nowhere[Array, 'm']"): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (variadic, "'x': cannot draw the dim '*b'"),
        (ellipsis, "'x': cannot draw the dim '...'"),
        (broadcast, "'x': cannot draw the dim '#b'"),
        (odd, "from_signature(odd): shapes: '/' is not allowed"),
        (none, "from_signature(none): the parameter 'x' has no default, and its annotation noth"),
        (keyword, "'y' is a keyword-only array"),
        (behind, "'y' is an array after 'scale'"),
        (unsaid, "'scale' has no default, and its annotation float"),
        (optional, "'x' has no default, and its annotation"),
        (keys, "'key': no dtype of Key[Array, ''] is supported"),
        (taken, "'dtype' is a reserved word"),
        (unknown, "its signature cannot be read: name 'Nowhere' is not defined"),
        (3, "this is not a function"),
        (max, "from_signature(max): "),
        (lambda y=1: y, "no parameter is annotated with an array"),
    ],
)
def test_what_cannot_be_expressed(function, words):
    with pytest.raises(SpecError) as caught:
        pst.from_signature(function)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": "int8"}, "the parameter 'a' does not allow dtype=int8; it allows "),
        ({"dtype": ("float32", "int8")}, "the parameter 'b' does not allow dtype=int8"),
        ({"dtype": ("float32",) * 3}, "3 dtypes for the 2 arrays"),
        ({"options": {"other": 1}}, "there is no parameter 'other'"),
        ({"options": {"block": 1}, "tuning": {"block": 1}}, "options and tuning both have block"),
        ({"around": {"q": 8}}, "there is no dim 'q'"),
    ],
)
def test_a_wrong_argument_is_named(arguments, words):
    with pytest.raises(SpecError) as caught:
        pst.from_signature(matmul, **arguments)
    assert words in str(caught.value)
