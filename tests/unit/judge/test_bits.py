import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.judge.judgement import bitwise


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "c8", "i4", "u8", "bool"]
    + [getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e4m3fn", "int4", "uint2")],
)
def test_one_different_element_is_found(dtype):
    expected = np.zeros((2, 3), dtype)
    assert bitwise(expected.copy(), expected).passed
    actual = expected.copy()
    actual[1, 2] = 1
    result = bitwise(actual, expected, where="second run")
    assert (result.passed, result.kind, result.wrong) == (False, "bitwise", 1)
    assert (result.worst_index, result.where) == ((1, 2), "second run")
    assert result.mask.tolist() == [[False] * 3, [False, False, True]]
    assert result.message.startswith("second run, ")


def test_the_sign_of_zero_counts():
    result = bitwise(np.array([1.0, -0.0]), np.array([1.0, 0.0]))
    assert (result.passed, result.worst_index, result.error) == (False, (1,), 0.0)


def test_nan_payloads_count():
    quiet = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert bitwise(quiet, quiet).passed
    assert not bitwise(quiet[::-1], quiet).passed


def test_worst_is_the_largest_error_and_a_nan_is_worse():
    expected = np.ones(4, np.float32)
    assert bitwise(np.float32([1, 1.5, 3, 1]), expected).worst_index == (2,)
    result = bitwise(np.float32([1, 1.5, 3, np.nan]), expected)
    assert (result.worst_index, result.error) == ((3,), np.inf)
    assert bitwise(np.int64([5, -(2**63)]), np.int64([1, 2**63 - 1])).error == 2.0**64


def test_layout_in_memory_does_not_matter():
    array = np.arange(12.0).reshape(3, 4)
    assert bitwise(np.asfortranarray(array), array).passed
    assert bitwise(array[:, ::2], array[:, ::2].copy()).passed


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays(shape):
    assert bitwise(np.ones(shape), np.ones(shape)).passed


def test_shape_and_dtype_must_agree():
    assert bitwise(np.zeros(2), np.zeros(3)).kind == "shape"
    assert bitwise(np.zeros(2, "f4"), np.zeros(2, "i4")).kind == "dtype"


def test_dtypes_without_arithmetic_are_compared_but_objects_are_not():
    keys = np.array([b"ab", b"cd"], "V2")
    assert bitwise(keys, keys).passed
    assert "1 elements differ" in bitwise(np.array([b"ab", b"ce"], "V2"), keys).message
    assert not bitwise(np.array([1], object), np.array([1], object)).passed
