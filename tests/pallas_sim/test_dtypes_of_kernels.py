import ml_dtypes
import numpy as np
import pytest

from pallas_sim.dtypes import epsilon, float_facts, is_bool, is_complex, is_exact, is_float, wide

FLOATS = {
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "bfloat16": 2.0**-7,
    "float8_e3m4": 2.0**-4,
    "float8_e4m3": 2.0**-3,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e4m3b11fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "float6_e2m3fn": 2.0**-3,
    "float6_e3m2fn": 2.0**-2,
    "float4_e2m1fn": 2.0**-1,
}
INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
INTEGERS += ["int2", "uint2", "int4", "uint4"]
COMPLEX = ["complex64", "complex128"]
COMPLEX += [name for name in ("complex32", "bcomplex32") if hasattr(ml_dtypes, name)]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    dtype = dtype_of(name)
    assert (is_float(dtype), is_exact(dtype), is_complex(dtype)) == (True, False, False)
    assert epsilon(dtype) == FLOATS[name]
    assert wide(np.ones((2, 3), dtype)).dtype == np.float64


@pytest.mark.parametrize("name", INTEGERS + ["bool"])
def test_integers_and_bool_are_exact(name):
    dtype = dtype_of(name)
    assert (is_float(dtype), is_exact(dtype), is_complex(dtype)) == (False, True, False)
    assert is_bool(dtype) == (name == "bool")
    assert epsilon(dtype) == 1.0


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    dtype = dtype_of(name)
    assert (is_float(dtype), is_exact(dtype), is_complex(dtype)) == (False, False, True)
    widened = wide(np.array([1 + 2j, -3j]).astype(dtype))
    assert widened.dtype == np.complex128
    assert widened.tolist() == [1 + 2j, -3j]


def test_epsilon_of_complex_is_that_of_its_parts():
    assert epsilon(np.complex64) == 2.0**-23


@pytest.mark.parametrize("name", ["int2", "int4", "int64"])
def test_wide_integers_keep_their_sign(name):
    widened = wide(np.array([-2, 1]).astype(dtype_of(name)))
    assert widened.dtype == np.int64
    assert widened.tolist() == [-2, 1]


def test_wide_uint64_does_not_wrap():
    assert wide(np.array([2**64 - 1], np.uint64)).tolist() == [2**64 - 1]


@pytest.mark.parametrize("dtype", [object, "U3", "V5", [("a", np.float32)]])
def test_what_is_not_a_number(dtype):
    dtype = np.dtype(dtype)
    assert not is_float(dtype)
    assert not is_exact(dtype)
    assert not is_complex(dtype)
    with pytest.raises(TypeError, match="not a number"):
        wide(np.zeros(2, dtype))
    with pytest.raises(TypeError, match="not a floating-point dtype"):
        float_facts(dtype)


def test_float_facts():
    facts = float_facts(np.dtype(ml_dtypes.float8_e4m3fn))
    assert (facts.largest, facts.smallest_normal, facts.bits) == (448.0, 2.0**-6, 8)
