import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas.draw import values
from pytest_pallas.draw.dtypes import SUPPORTED, as_dtype, is_float
from pytest_pallas.draw.values import CLASSES, check_classes, generate, range_of, value_class

REAL = [name for name, dtype in SUPPORTED.items() if dtype.kind != "c"]
F32 = SUPPORTED["float32"]
SHAPES = [(), (5,), (0, 3), (3, 0), (9, 7), (2, 3, 4)]


def numbers(values, shape=(64, 64), dtype="float32", seed=1):
    return generate(values, shape, SUPPORTED[dtype], seed=seed).astype(np.float64)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("values", CLASSES)
def test_every_class_for_every_dtype(values, name):
    dtype = SUPPORTED[name]
    for shape in SHAPES:
        made = generate(values, shape, dtype, seed=3)
        assert isinstance(made, np.ndarray)
        assert (made.shape, made.dtype) == (shape, dtype)
    many = numbers(values, (40, 40), name)
    assert len(np.unique(many)) >= 2
    if values != "special":
        assert np.all(np.isfinite(many))
        assert np.all((many >= range_of(dtype).low) & (many <= range_of(dtype).high))


@pytest.mark.parametrize("values", CLASSES)
def test_a_seed_and_an_index_determine_the_elements(values):
    first = generate(values, (50, 8), F32, seed=7, index=1)
    np.testing.assert_array_equal(first, generate(values, (50, 8), F32, seed=7, index=1))
    for other in ({"seed": 8, "index": 1}, {"seed": 7, "index": 0}):
        assert not np.array_equal(first, generate(values, (50, 8), F32, **other), equal_nan=True)


def test_values_do_not_change_between_versions():
    made = generate("integers", (8,), F32, seed=0)
    assert made.tolist() == [2, 4, 4, -4, 0, 3, 1, -4]


@pytest.mark.parametrize("name", [n for n in REAL if n not in ("bool", "float8_e8m0fnu")])
def test_integers_are_small_exact_and_never_all_zero(name):
    found = numbers("integers", dtype=name)
    assert set(np.unique(found)) <= set(range(-4, 5))
    assert found.sum() != 0
    for seed in range(40):
        assert np.any(numbers("integers", (1,), name, seed))


def test_integers_reach_from_minus_4_to_4_and_lean_to_the_right():
    found = numbers("integers")
    assert set(np.unique(found)) == set(range(-4, 5))
    assert found.mean() > 0.25


def test_sums_of_integers_are_exact_in_any_order():
    for name in ("bfloat16", "float32", "float8_e8m0fnu"):
        a = generate("integers", (300,), SUPPORTED[name], seed=2).astype(np.float32)
        forward = np.cumsum(a, dtype=np.float32)[-1]
        assert forward == np.cumsum(a[::-1], dtype=np.float32)[-1] == a.astype(np.float64).sum()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int4", "float4_e2m1fn"])
def test_rows_are_constant_and_differ_from_their_neighbours(name):
    found = numbers("rows", (6, 20, 5), name).reshape(-1, 5)
    assert np.all(found == found[:, :1])
    assert np.all(found[1:, 0] != found[:-1, 0])
    # Blocks of rows of the usual sizes cannot be swapped unnoticed either.
    tall = numbers("rows", (300, 2), name)
    for block in (8, 16, 32, 64, 128):
        assert np.any(tall[:block] != tall[block : 2 * block])


def test_a_sequential_sum_of_rows_is_exact():
    """Else the same rounding error comes at every step, which says nothing about a kernel."""
    found = generate("rows", (31, 2**14), F32, seed=0)
    for terms in (found, found * found):
        in_order = np.cumsum(terms, axis=-1, dtype=np.float32)[:, -1]
        np.testing.assert_array_equal(in_order, terms.astype(np.float64).sum(-1))


def test_rows_of_one_axis_are_its_elements():
    found = numbers("rows", (20,))
    assert np.all(found[1:] != found[:-1])


def test_each_onehot_row_has_a_single_one():
    found = numbers("onehot", (3, 50, 8))
    assert np.all(found.sum(-1) == 1)
    assert set(np.unique(found)) == {0, 1}
    assert len(np.unique(found.argmax(-1))) == 8


@pytest.mark.parametrize(
    ("name", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 20), ("int8", 7), ("int4", 3)]
)
def test_full_numbers_have_all_bits_and_their_sums_more(name, bits):
    found = numbers("full", (300, 300), name)
    assert set(np.unique(np.floor(np.log2(np.abs(found))))) == {bits - 1}
    assert 0.45 < np.mean(found < 0) < 0.55
    assert np.all(found == np.rint(found))
    if name in ("bfloat16", "float16"):
        sums = found[:, 1:] + found[:, :-1]
        assert np.mean(sums.astype(SUPPORTED[name]).astype(np.float64) != sums) > 0.2


def test_sums_of_sixteen_full_numbers_are_exact_in_float32():
    found = np.abs(generate("full", (1000, 16), F32, seed=0))
    in_order = np.cumsum(found, axis=-1, dtype=np.float32)[:, -1]
    np.testing.assert_array_equal(in_order, found.astype(np.float64).sum(-1))


def test_uniform_values_fill_their_range():
    found = numbers("uniform")
    assert -1 <= found.min() < -0.99
    assert 0.99 < found.max() <= 1
    assert abs(found.mean()) < 0.05
    for name, low, high in (("int8", -128, 127), ("uint8", 0, 255), ("int32", -1000, 1000)):
        found = numbers("uniform", (300, 300), name)
        assert (found.min(), found.max()) == (low, high)


def test_normal_values_have_unit_deviation():
    found = numbers("normal")
    assert abs(found.mean()) < 0.1
    assert abs(found.std() - 1) < 0.1
    assert abs(numbers("normal", dtype="int32").std() - 8) < 0.5


def test_wide_covers_every_order_of_magnitude_with_both_signs():
    found = numbers("wide")
    assert set(np.unique(np.floor(np.log2(np.abs(found))))) == set(range(-8, 8))
    assert 0.4 < np.mean(found < 0) < 0.6
    assert np.abs(numbers("wide", dtype="int32")).max() > 32_768


@pytest.mark.parametrize("columns", [64, 65])
def test_cancelling_sums_are_small_and_their_terms_large(columns):
    found = numbers("cancelling", (64, columns))
    assert np.abs(found).mean() > 40
    assert np.abs(found.sum(-1)).max() < 200
    half = columns // 2
    assert np.abs(found[:, :half].sum(-1)).mean() > 200  # no order of summation is spared
    for seed in range(3):  # small enough for exact sums
        assert np.all(numbers("cancelling", seed=seed) % 1 == 0)


@pytest.mark.parametrize("name", ["int8", "int4", "int32"])
def test_cancelling_integers_have_small_sums(name):
    found = numbers("cancelling", (64, 64), name)
    assert np.abs(found.sum(-1)).mean() < np.abs(found).sum(-1).mean() / 3


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16", "float8_e5m2"])
def test_tiny_has_signed_zeros_and_subnormals(name):
    found = numbers("tiny", dtype=name)
    zeros = found == 0
    assert np.signbit(found[zeros]).any()
    assert not np.signbit(found[zeros]).all()
    info = ml_dtypes.finfo(SUPPORTED[name])
    for least in (float(info.smallest_subnormal), float(info.smallest_normal)):
        assert {least, -least} <= set(found.flat)
    assert set(numbers("tiny", dtype="int32").flat) == {-1, 0, 1}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_special_has_them_all(name):
    dtype = SUPPORTED[name]
    made = generate("special", (64, 64), dtype, seed=0)
    found = made.astype(np.float64)
    assert np.isnan(found).any()
    assert np.isposinf(found).any()
    assert np.isneginf(found).any()
    assert np.any((found == 0) & np.signbit(found))
    assert range_of(dtype).high in found
    assert 0.8 < np.mean(np.isfinite(found)) < 1


def test_special_where_there_is_no_infinity_or_no_nan():
    found = numbers("special", dtype="float8_e4m3fn")
    assert np.isnan(found).any()
    assert not np.isinf(found).any()
    assert np.isfinite(numbers("special", dtype="float4_e2m1fn")).all()
    for name in ("int8", "int4", "uint8"):
        found = numbers("special", dtype=name)
        assert {range_of(SUPPORTED[name]).low, range_of(SUPPORTED[name]).high} <= set(found.flat)


def test_special_is_never_without_any():
    for seed in range(20):
        made = generate("special", (2,), SUPPORTED["float8_e4m3fn"], seed=seed)
        plain = generate("normal", (2,), SUPPORTED["float8_e4m3fn"], seed=seed)
        assert made.tobytes() != plain.tobytes()


@pytest.mark.parametrize("name", [n for n in SUPPORTED if n.startswith("uint")])
@pytest.mark.parametrize("values", CLASSES)
def test_unsigned_values_are_not_negative(values, name):
    assert numbers(values, dtype=name).min() >= 0


def test_float64_is_not_made_of_float32():
    made = generate("normal", (100,), SUPPORTED["float64"], seed=0)
    assert np.any(made != made.astype(np.float32))
    assert is_float(made.dtype)


def test_classes_are_sorted_from_the_simplest_on():
    assert check_classes(("normal", "integers")) == ("integers", "normal")
    assert check_classes("wide") == ("wide",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("gaussian", "values: there is no value class 'gaussian'.*integers"),
        (["normal", 3], "no value class 3"),
        ((), "values is empty"),
        (None, "values must be names of value classes"),
    ],
)
def test_unknown_classes_are_an_error(values, words):
    with pytest.raises(SpecError, match=words):
        check_classes(values)


@pytest.fixture
def classes(monkeypatch):
    """The known classes, which a test may add to."""
    monkeypatch.setattr(values, "CLASSES", dict(CLASSES))
    return values.CLASSES


def test_a_class_of_ones_own(classes):
    @value_class("ramp")
    def ramp(request):
        return np.arange(request.shape[-1]) - 0.25

    assert list(classes)[-1] == "ramp"
    made = generate("ramp", (2, 3), np.dtype(np.uint8), seed=0)
    assert made.dtype == np.uint8
    assert made.tolist() == [[0, 1, 2]] * 2
    assert check_classes(["ramp", "rows"]) == ("rows", "ramp")


def test_two_classes_of_one_name(classes):
    with pytest.raises(SpecError, match="two value classes with the name 'rows'"):
        value_class("rows")(lambda request: np.zeros(request.shape))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "uint8"])
def test_ties_are_far_apart_and_below_the_padding(dtype):
    made = generate("ties", (16, 40), as_dtype(dtype), seed=1).astype(np.float32)
    assert (made > 0).all() if dtype == "uint8" else (made < 0).all()
    for row in np.abs(made):
        where = np.flatnonzero(row == row.min())
        assert len(where) > 1
        assert np.ptp(where) >= 20


def test_peaks_are_small_rows_beside_large_ones_and_zeros():
    made = generate("peaks", (65, 300), as_dtype("float32"), seed=1)
    largest = np.abs(made).max(axis=1)
    assert (largest == 0).sum() == 13
    assert (largest < 0.5).sum() == 26
    assert (largest > 60).sum() == 39
    assert (made.max(axis=1) < 0).sum() == 13
    single = made[(np.abs(made) > 5).sum(axis=1) == 1]
    assert len(single) == 13
    assert len(set((np.argmax(single, axis=1) // 128).tolist())) == 3  # in any block
    assert np.isfinite(np.exp(made).sum())
    other = generate("peaks", (64, 300), as_dtype("float32"), seed=1, index=1)
    assert 8 < np.abs(other).max() < 30
    assert (np.abs(other).max(axis=1) == 0).sum() == 8


def test_of_some_peaks_half_of_the_rows_are_zeros():
    draws = [generate("peaks", (64, 16), as_dtype("float32"), seed=seed) for seed in range(40)]
    halves = [not made[32:].any() for made in draws]
    assert 4 < sum(halves) < 20
    assert all(made[:32].any() for made in draws)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int8", "int32", "uint8", "int4"])
def test_peaks_fit_narrow_dtypes(dtype):
    made = generate("peaks", (16, 64), as_dtype(dtype), seed=1).astype(np.float32)
    assert np.isfinite(made).all()
    assert np.abs(made).max() <= 80
    assert len(np.unique(np.abs(made).max(axis=1))) > 2
