"""Calls by shapes alone."""

import jax.numpy as jnp
import pytest

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst


def test_shapes_dtypes_and_keywords():
    call = pst.shaped(
        "m k, k n",
        dtype="bfloat16",
        dims={"m": 16, "k": 32, "n": 8},
        options={"causal": True},
        tuning={"block": 8},
    )
    assert [(x.shape, x.dtype) for x in call.args] == [
        ((16, 32), jnp.bfloat16),
        ((32, 8), jnp.bfloat16),
    ]
    assert (call.options, call.tuning) == ({"causal": True}, {"block": 8})


def test_one_dtype_for_each_array():
    call = pst.shaped("n, 2, ()", dtype=["float32", "int32", "int8"], dims={"n": 3})
    assert [(x.shape, str(x.dtype)) for x in call.args] == [
        ((3,), "float32"),
        ((2,), "int32"),
        ((), "int8"),
    ]


def test_a_missing_size_is_named():
    with pytest.raises(SpecError, match="no size for k"):
        pst.shaped("m k", dtype="float32", dims={"m": 3})


def test_dtypes_must_match_the_arrays():
    with pytest.raises(SpecError, match="1 dtypes for 2 arrays"):
        pst.shaped("m, m", dtype=["float32"], dims={"m": 3})
