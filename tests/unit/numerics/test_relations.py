import numpy as np
import pytest

from pytest_pallas.numerics import value_patterns

RIGHT = np.random.default_rng(0).normal(size=(6, 6))


def relations(actual, right=RIGHT, slack=1e-6):
    return value_patterns(np.abs(actual - right) > 1e-3, actual, right, slack)


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [
        (0 * RIGHT, "the wrong elements are all 0 (never written, or masked out?)"),
        (0 * RIGHT + 3, "the wrong elements are all 3"),
        (1.1 * RIGHT, "the wrong elements are 1.1 times the oracle"),
        (-RIGHT, "the wrong elements have the wrong sign"),
        (RIGHT.T, "the output is the oracle with its last two axes transposed"),
        (np.roll(RIGHT, 1, 0), "the output is the oracle rolled by 1 along axis 0"),
        (np.roll(RIGHT, -1, 1), "the output is the oracle rolled by -1 along axis 1"),
        (np.where(RIGHT > 1, 2 * RIGHT, RIGHT), "the wrong elements are 2 times the oracle"),
        (np.where(RIGHT > 1, 0, RIGHT), "the wrong elements are all 0"),
        (RIGHT * 1j, "the wrong elements are 0+1j times the oracle"),
    ],
)
def test_relation(actual, sentence):
    assert relations(actual)[0].startswith(sentence)


def test_complex_factor_of_complex_numbers():
    for right in (RIGHT + 1j * RIGHT.T, np.array([[1, 1j, 3], [1j, 1, 3j]])):
        assert "are 0+2j times" in relations(2j * right, right)[0]


def test_all_nan():
    assert "all NaN" in value_patterns(RIGHT > 0, np.where(RIGHT > 0, np.nan, RIGHT), RIGHT, 0)[0]


def test_noise_has_no_relation():
    rng = np.random.default_rng(1)
    assert relations(RIGHT + rng.normal(size=RIGHT.shape)) == ()


def test_one_rounding_error_everywhere_is_no_factor():
    actual = RIGHT * (1 + 1e-7)
    assert value_patterns(np.ones_like(RIGHT, bool), actual, RIGHT, 1e-6) == ()


def test_a_relation_must_hold_everywhere():
    actual = np.roll(RIGHT, 1, 0)
    actual[3, 3] += 1
    assert relations(actual) == ()


def test_infinities_do_not_disturb():
    right = RIGHT.copy()
    right[0, 0] = np.inf
    rolled = np.roll(right, 1, 1)
    wrong = ~((rolled == right) & np.isfinite(right))
    assert "rolled by 1" in value_patterns(wrong, rolled, right, 1e-6)[0]


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_extreme_values(size):
    wrong = np.ones(RIGHT.shape, bool)
    assert "1.5 times" in value_patterns(wrong, 1.5 * size * RIGHT, size * RIGHT, 1e-6)[0]
