import math

import ml_dtypes
import numpy as np
import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.judge.tolerance import ROUNDING, Tolerance, summation_error


@pytest.mark.parametrize("field", ["factor", "floor", "rtol", "atol", "ulp", "fraction"])
@pytest.mark.parametrize("value", [-1, math.nan, "3", True])
def test_a_field_that_is_no_measure_is_refused_by_name(field, value):
    with pytest.raises(OptionError, match=field):
        Tolerance(**{field: value})


@pytest.mark.parametrize("field", ["factor", "fraction"])
def test_none_is_only_for_optional_fields(field):
    with pytest.raises(OptionError, match=field):
        Tolerance(**{field: None})


def test_fraction_above_one_is_refused():
    with pytest.raises(OptionError, match="fraction must be a number from 0 to 1"):
        Tolerance(fraction=1.5)


def test_numpy_numbers_and_zero_are_accepted():
    assert Tolerance(rtol=np.float32(0.5), atol=0, fraction=1).explicit


@pytest.mark.parametrize("field", ["rtol", "atol", "ulp"])
def test_explicit_if_any_explicit_field_is_set(field):
    assert Tolerance(**{field: 0.0}).explicit
    assert not Tolerance().explicit


def test_allowed_is_a_multiple_of_the_baseline_plus_floor_plus_summation():
    tolerance = Tolerance(factor=3, floor=2)
    assert tolerance.allowed(5.0, np.float32, depth=100) == 3 * 5 + 2 + 10


def test_default_floor_is_smaller_in_narrow_formats():
    assert Tolerance().allowed(0.0, np.float32, depth=0) == 4
    assert Tolerance().allowed(0.0, ml_dtypes.bfloat16, depth=0) == 4
    assert Tolerance().allowed(0.0, ml_dtypes.float8_e4m3fn, depth=0) == 1
    assert Tolerance(floor=7).allowed(0.0, ml_dtypes.float8_e4m3fn, depth=0) == 7


def test_summation_error_is_that_of_the_accumulator():
    assert summation_error(np.float32, 4096) == 64
    assert summation_error(np.float64, 4096) == 64
    assert summation_error(np.complex64, 4096) == 64
    assert summation_error(ml_dtypes.bfloat16, 4096) == 64 * 2.0**-16


def test_one_rounding_has_the_root_mean_square_of_roundings():
    numbers = np.exp(np.random.default_rng(0).uniform(0, 10 * math.log(2), 200_000))
    for dtype, eps in ((np.float16, 2.0**-10), (np.float32, 2.0**-23)):
        errors = (numbers.astype(dtype) - numbers) / numbers / eps
        assert math.sqrt(np.mean(errors**2)) == pytest.approx(ROUNDING, rel=0.01)


def test_allowed_rms_of_a_narrow_output_leaves_chance_and_little_else():
    rule = Tolerance(factor=3, floor=2)
    assert rule.allowed_rms(0.5, ml_dtypes.bfloat16, 100) == pytest.approx(1.5 + 0.2, abs=1e-3)
    assert rule.allowed_rms(0.5, ml_dtypes.bfloat16, 1) == pytest.approx(1.5 + 2, abs=1e-3)
    floor = 2 * 2.0**-16
    assert rule.allowed_rms(0.5, ml_dtypes.bfloat16, 10**12, depth=0) == 1.5 + floor


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_allowed_rms_of_a_wide_output_has_the_whole_floor(dtype):
    assert Tolerance().allowed_rms(0.5, dtype, 10**6, depth=100, sensitivity=3) == 1 + 4 + 30


def test_allowed_rms_has_one_rounding_of_the_inputs_where_that_is_more():
    allowed = Tolerance(floor=0).allowed_rms
    assert allowed(0.15, np.float16, 100, 0, sensitivity=1.4) == 0.3
    assert allowed(0.15, np.float16, 100, 0, sensitivity=10) == 10 * ROUNDING
