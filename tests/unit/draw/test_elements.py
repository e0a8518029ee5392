import math
from random import Random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.draw.dtypes import SUPPORTED, is_float
from pytest_pallas.draw.values import range_of

#: To explain a failure takes longer than to shrink it.
PHASES = [Phase.generate, Phase.shrink]


REAL = [name for name, dtype in SUPPORTED.items() if dtype.kind != "c"]
FLOATS = [name for name, dtype in SUPPORTED.items() if is_float(dtype)]


def numbers(drawn):
    return [float(value) for value in drawn]


@pytest.mark.parametrize("name", REAL)
def test_values_of_every_dtype(draws, name):
    dtype = SUPPORTED[name]
    drawn = draws(pst.elements(name))
    assert {np.asarray(value).dtype for value in drawn} == {dtype}
    assert all(math.isfinite(value) for value in numbers(drawn))
    assert {float(range_of(dtype).high), float(range_of(dtype).low)} <= set(numbers(drawn))


@pytest.mark.parametrize("name", [n for n in FLOATS if n != "float8_e8m0fnu"])
def test_boundaries_within_100_examples(draws, name):
    info = ml_dtypes.finfo(SUPPORTED[name])
    found = set(numbers(draws(pst.elements(name))))
    assert found >= {0.0, 1.0, -1.0, float(info.smallest_normal), float(info.smallest_subnormal)}
    assert 1 + float(info.eps) in found


def test_zeros_of_both_signs_are_drawn(draws):
    zeros = {math.copysign(1, x) for x in numbers(draws(pst.elements("bfloat16"))) if x == 0}
    assert zeros == {1, -1}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "float64"])
def test_nan_infinity_and_subnormals_only_if_asked_for(draws, name):
    found = numbers(draws(pst.elements(name, allow_nan=True, allow_infinity=True)))
    assert any(math.isnan(x) for x in found)
    assert {math.inf, -math.inf} <= set(found)
    found = numbers(draws(pst.elements(name, allow_subnormal=False)))
    least = float(ml_dtypes.finfo(SUPPORTED[name]).smallest_normal)
    assert least in found
    assert all(x == 0 or abs(x) >= least for x in found)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int8", "int64", "uint4"])
def test_elements_lie_within_their_bounds(draws, name):
    found = numbers(draws(pst.elements(name, min_value=0.3, max_value=5)))
    assert min(found) >= 0.3
    assert max(found) <= 5
    assert 5 in found or is_float(SUPPORTED[name])
    unbounded = numbers(draws(pst.elements("float32", min_value=1, allow_infinity=True)))
    assert math.inf in unbounded
    assert min(unbounded) >= 1


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float32", "int4", "int32"]
)
def test_shrinks_to_what_is_short(name):
    def simplest(holds):
        quiet = settings(database=None, max_examples=2000, phases=PHASES)
        return float(
            find(
                pst.elements(name),
                lambda value: holds(float(value)),
                settings=quiet,
                random=Random(0),
            )
        )

    assert simplest(lambda value: True) == 0
    assert simplest(lambda value: value >= 2) == 2
    if is_float(SUPPORTED[name]):
        assert simplest(lambda value: value % 1 != 0) in (0.5, 1.5)


def test_every_pattern_of_a_narrow_dtype_can_be_drawn(draws):
    drawn = draws(pst.elements("float4_e2m1fn"), 300)
    assert set(numbers(drawn)) == {s * x for s in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)}


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_serves_hypothesis_arrays(draws, name):
    strategy = hnp.arrays(SUPPORTED[name], st.just((2, 3)), elements=pst.elements(name))
    for array in draws(strategy, 20):
        assert (array.shape, array.dtype) == ((2, 3), SUPPORTED[name])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.elements("float31"), "dtype: 'float31' is not"),
        (lambda: pst.elements("int8", min_value=200), "int8 has no value between min_value=200"),
        (lambda: pst.elements("bfloat16", min_value=2, max_value=1), "bfloat16 has no value"),
        (lambda: pst.elements("float32", min_value=2, max_value=1), "float32 has no value"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
