import numpy as np
import pytest
from hypothesis import strategies as st

from pytest_pallas import ShapeLanguageError, SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.draw.arrays import build
from pytest_pallas.draw.dtypes import as_dtype

MATMUL = "m k, k n"


def test_draws_a_tuple_of_arrays_with_its_recipe(draws):
    for drawn in draws(pst.arrays(MATMUL, around=8)):
        assert isinstance(drawn, pst.Drawn)
        assert list(drawn.recipe) == ["m", "k", "n", "dtype", "values", "seed"]
        sizes = drawn.recipe
        a, b = drawn
        assert a.shape == (sizes["m"], sizes["k"])
        assert b.shape == (sizes["k"], sizes["n"])
        assert a.dtype.name == b.dtype.name == sizes["dtype"]
        assert (a @ b).shape == (sizes["m"], sizes["n"])


def test_a_single_array_is_still_a_tuple(draws):
    for drawn in draws(pst.arrays("m 3, "), 5):
        assert len(drawn) == 2
        assert drawn[1].shape == ()
    assert all(len(drawn) == 1 for drawn in draws(pst.arrays("m"), 5))


def test_arrays_of_one_draw_differ(draws):
    strategy = pst.arrays("m, m", dims={"m": 64}, values="normal")
    assert not any(np.array_equal(a, b) for a, b in draws(strategy, 10))


def test_arrays_share_one_dtype(draws):
    drawn = draws(pst.arrays(MATMUL, dtype=pst.floats("float16", "float32")))
    assert {d.recipe["dtype"] for d in drawn} == {"float16", "float32"}
    assert all(d[0].dtype == d[1].dtype for d in drawn)
    assert draws(pst.arrays("m", dtype="int4"), 1)[0].recipe["dtype"] == "int4"


def test_a_dtype_per_array(draws):
    drawn = draws(pst.arrays(MATMUL, dtype=("float32", pst.ints("int8", "int32"))))
    found = {d.recipe["dtype"] for d in drawn}
    assert found == {("float32", "int8"), ("float32", "int32")}
    assert all(d[0].dtype == np.float32 and d[1].dtype.name == d.recipe["dtype"][1] for d in drawn)


def test_dtypes_that_are_drawn_together(draws):
    drawn = draws(pst.arrays(MATMUL, dtype=pst.dtype_pairs()))
    both = ("float32", "bfloat16")
    assert {d.recipe["dtype"] for d in drawn} == {(a, b) for a in both for b in both}
    assert all((d[0].dtype.name, d[1].dtype.name) == d.recipe["dtype"] for d in drawn)
    with pytest.raises(SpecError, match="3 dtypes for the 2 arrays"):
        draws(pst.arrays(MATMUL, dtype=pst.dtype_pairs(("int8",) * 3)), 1)


def test_value_classes_are_the_given_ones(draws):
    usual = {"normal", "integers", "ties", "peaks"}
    assert {d.recipe["values"] for d in draws(pst.arrays("m"))} == usual
    chosen = pst.arrays("m", values=("special", "rows"))
    assert {d.recipe["values"] for d in draws(chosen)} == {"special", "rows"}


def test_nan_and_infinity_only_if_asked_for(draws):
    drawn = draws(pst.arrays("m k", dtype="float32", around=8))
    assert all(np.isfinite(d[0]).all() for d in drawn)


def test_draws_have_different_seeds(draws):
    assert len({d.recipe["seed"] for d in draws(pst.arrays("m"))}) > 50


def test_same_seed_same_arrays(draws):
    first, again = (draws(pst.arrays(MATMUL, around=8), 30, 3) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.recipe == other.recipe
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_recipe_is_enough_to_build_it_again(draws):
    shapes = pst.parse(MATMUL)
    for drawn in draws(pst.arrays(shapes, around=8, dtype=("bfloat16", "int8")), 10):
        recipe = dict(drawn.recipe)
        dtypes = [as_dtype(name) for name in recipe.pop("dtype")]
        values, seed = recipe.pop("values"), recipe.pop("seed")
        again = build(shapes, recipe, dtypes, values=values, seed=seed)
        assert again.recipe == drawn.recipe
        assert [a.tobytes() for a in again] == [a.tobytes() for a in drawn]


def test_shape_arguments_are_passed_on(draws):
    drawn = draws(
        pst.arrays(
            "a b, c", multiple_of={"a": 4}, dims={"b": 2}, max_dim=9, max_elements=16, min_dim=0
        )
    )
    assert {d[0].shape for d in drawn} == {(0, 2), (4, 2), (8, 2)}
    assert {d.recipe["c"] for d in drawn} >= {0, 1, 9}


def test_the_simplest_example(shrunk):
    text = shrunk(pst.arrays(MATMUL, around=128), lambda args: True)
    assert "args=Drawn(m=1, k=1, n=1, dtype=float32, values=integers, seed=0)" in text


def test_shrinks_to_what_matters(shrunk):
    text = shrunk(pst.arrays(MATMUL, around=128), lambda args: args[0].shape[1] > 128)
    assert "args=Drawn(m=1, k=129, n=1, dtype=float32, values=integers, seed=0)" in text
    bf16 = shrunk(pst.arrays("m", around=8), lambda args: args[0].dtype.name == "bfloat16")
    assert "args=Drawn(m=1, dtype=bfloat16, values=integers, seed=0)" in bf16


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"dtype": "float31"}, "^dtype: 'float31' is not a supported dtype"),
        ({"dtype": ("float32",)}, "^dtype: 1 dtypes for the 2 arrays of 'm k, k n'"),
        ({"dtype": ("float32", "x")}, "^dtype: 'x' is not"),
        ({"values": "bell"}, "^values: there is no value class 'bell'"),
        ({"around": -8}, "^around must be"),
        ({"multiple_of": {"q": 8}}, "^multiple_of: there is no dim 'q'"),
        ({"dims": {"q": 8}}, "^dims: there is no dim 'q'"),
        ({"max_dim": "1"}, "^max_dim must be"),
        ({"max_elements": 1.5}, "^max_elements must be"),
        ({"min_dim": None}, "^min_dim must be"),
    ],
)
def test_arguments_are_checked_at_once(kwargs, words):
    with pytest.raises(SpecError, match=words):
        pst.arrays(MATMUL, **kwargs)


def test_shapes_are_checked_at_once():
    with pytest.raises(ShapeLanguageError):
        pst.arrays("m; k")


def test_a_dtype_strategy_that_draws_none(draws):
    with pytest.raises(SpecError, match="what dtype drew"):
        draws(pst.arrays("m", dtype=st.just("datetime64[s]")), 1)
