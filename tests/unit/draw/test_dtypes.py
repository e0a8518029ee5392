import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas.draw.dtypes import SUPPORTED, as_dtype, is_float, is_int
from pytest_pallas.strategies import dtype_pairs, dtypes, floats, ints


def names(drawn):
    return {dtype.name for dtype in drawn}


def test_default_dtypes_of_floats_and_ints(draws):
    assert names(draws(floats())) == {"float32", "bfloat16"}
    assert names(draws(ints())) == {"int32", "int8"}


def test_only_the_given_dtypes_are_drawn(draws):
    assert names(draws(floats("float16", "float8_e4m3fn"))) == {"float16", "float8_e4m3fn"}
    assert names(draws(ints("uint4", np.int16))) == {"uint4", "int16"}
    drawn = draws(dtypes("bool", "bfloat16"))
    assert names(drawn) == {"bool", "bfloat16"}
    assert all(isinstance(dtype, np.dtype) for dtype in drawn)


def test_pairs_of_dtypes_are_drawn_together_and_shrink(draws, shrunk):
    drawn = {tuple(d.name for d in pair) for pair in draws(dtype_pairs())}
    both = ("float32", "bfloat16")
    assert drawn == {(one, other) for one in both for other in both}
    chosen = draws(dtype_pairs(("bfloat16", "int8", "float32"), ("int4",) * 3))
    triples = {tuple(d.name for d in triple) for triple in chosen}
    assert triples == {("bfloat16", "int8", "float32"), ("int4",) * 3}
    text = shrunk(dtype_pairs(), lambda pair: pair[0] != pair[1])
    assert "args=(dtype(bfloat16), dtype('float32'))" in text


def test_shrinks_to_the_first(shrunk):
    assert "args=dtype('int8')" in shrunk(dtypes("int8", "float32"), lambda _: True)


def test_everything_that_means_a_dtype():
    jnp = pytest.importorskip("jax.numpy")
    meant = ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), jnp.bfloat16]
    assert {as_dtype(value) for value in meant} == {np.dtype(ml_dtypes.bfloat16)}
    assert as_dtype(np.dtype(">f4")) == np.dtype("float32")
    assert as_dtype(np.dtype("float64")) == np.dtype("float64")
    assert as_dtype(np.int64) == np.dtype("int64")
    assert as_dtype(bool) == np.dtype("bool")


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_dtype_is_of_one_kind(name):
    dtype = SUPPORTED[name]
    assert dtype.name == name
    assert is_float(dtype) + is_int(dtype) + (dtype.kind in "bc") == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dtypes(), "at least one"),
        (lambda: dtypes("floaty"), "dtypes: 'floaty' is not a supported dtype.*bfloat16"),
        (lambda: dtypes("datetime64"), "not a supported dtype"),
        (lambda: dtypes(np.datetime64), "not a supported dtype"),
        (lambda: dtypes(None), "not a supported dtype"),
        (lambda: dtypes(float), "float32"),
        (lambda: dtypes(object()), "not a supported dtype"),
        (lambda: dtype_pairs("float32"), "'float32' is not a pair"),
        (lambda: dtype_pairs(("float32", "x")), "dtype_pairs: 'x' is not"),
        (lambda: dtype_pairs(("int8",) * 2, ("int8",)), "same length"),
        (lambda: dtype_pairs(()), "same length"),
        (lambda: floats("int8"), "floats: 'int8' is a dtype of another kind"),
        (lambda: ints("bool"), "ints: 'bool' is a dtype of another kind"),
        (lambda: ints("float32"), "ints: 'float32' is a dtype of another kind"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
