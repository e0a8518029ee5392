"""Complex numbers."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.draw.values import CLASSES, generate


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("values", CLASSES)
def test_both_parts_are_drawn_and_differ(values, dtype):
    array = generate(values, (64, 64), np.dtype(dtype), seed=3)
    assert array.dtype == dtype
    assert array.shape == (64, 64)
    finite = array[np.isfinite(array)]
    assert finite.imag.any()
    assert not np.array_equal(array.real, array.imag, equal_nan=True)


def test_arrays_have_the_dtype(draws):
    for (array,) in draws(pst.arrays("m n", dtype="complex64"), examples=5):
        assert array.dtype == np.complex64


def test_elements_have_both_parts(draws):
    drawn = draws(pst.elements("complex64"))
    assert any(each.real for each in drawn)
    assert any(each.imag for each in drawn)
    assert {each.dtype.name for each in drawn} == {"complex64"}


def test_elements_have_no_bounds():
    with pytest.raises(SpecError, match="have no order"):
        pst.elements("complex64", min_value=0)
