import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.judge.wrong_elements import value_patterns

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


def test_a_factor_near_1_has_its_digits():
    (sentence,) = relations(1.0002 * 1000 * RIGHT, 1000 * RIGHT)
    assert sentence == "the wrong elements are 1.0002 times the oracle"


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


def test_an_axis_of_one_element_is_not_rolled():
    right = RIGHT.reshape(1, 6, 6)
    actual = right.copy()
    actual[0, 0, :2] *= 1 + 1e-7
    assert value_patterns(actual != right, actual, right, 1e-6) == ()


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


@pytest.mark.parametrize(
    ("wrong", "right", "sentence"),
    [
        (0.0, 3.0, "the wrong element is 0 (never written, or masked out?)"),
        (np.nan, 3.0, "the wrong element is NaN (read before it was written?)"),
        (-3.0, 3.0, "the wrong element has the wrong sign"),
        (6.0, 3.0, "the wrong element is 2 times the oracle"),
        (1.5, 3.0, "the wrong element is 0.5 times the oracle"),
    ],
)
def test_a_single_element(wrong, right, sentence):
    alone = np.array([[wrong]]), np.array([[right]])
    assert value_patterns(np.ones((1, 1), bool), *alone, 1e-6) == (sentence,)
    actual = RIGHT.copy()
    actual[2, 3] = wrong
    oracle = RIGHT.copy()
    oracle[2, 3] = right
    mask = np.zeros(RIGHT.shape, bool)
    mask[2, 3] = True
    assert value_patterns(mask, actual, oracle, 1e-6) == (sentence,)


@pytest.mark.parametrize(("wrong", "right"), [(3.3, 3.0), (3.0, 0.0), (9.0, 3.0), (np.inf, 3.0)])
def test_a_single_element_may_be_anything(wrong, right):
    assert value_patterns(np.array(True), np.array(wrong), np.array(right), 1e-6) == ()


@pytest.mark.parametrize("dtype", ["int4", "int8", "int16", "uint8"])
def test_integers_that_wrapped_around(dtype):
    narrow = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    right = np.random.default_rng(0).integers(-(2**17), 2**17, (8, 8))
    actual = right.astype(narrow).astype(np.int64)
    (sentence,) = value_patterns(actual != right, actual + 0.0, right + 0.0, 0.0)
    bits = int(dtype.strip("uint"))
    assert sentence == f"the wrong elements are off by multiples of 2**{bits} " + (
        f"(wrapped around in {dtype}?)"
    )


def test_parts_that_wrapped_around_before_they_were_added():
    right = np.array([500.0, 700, 900, -40])
    actual = right - [256, 512, 512, 0]
    (sentence,) = value_patterns(actual != right, actual, right, 0.0)
    assert sentence.endswith("(wrapped around in 8 bits?)")


def test_multiples_of_a_power_of_two_have_not_wrapped_around():
    right = 256.0 * np.arange(1, 9)
    assert value_patterns(np.ones(8, bool), right + 256 * np.arange(1, 9) ** 2, right, 0.0) == ()
    rng = np.random.default_rng(0)
    right, other = rng.integers(-1000, 1000, (2, 50)).astype(float)
    assert value_patterns(right != other, other, right, 0.0) == ()


def swapped(oracle, height, width):
    """What a kernel writes whose input blocks are taken at (j, i), clamped to the last one."""
    actual = np.empty_like(oracle)
    rows, columns = oracle.shape[0] // height, oracle.shape[1] // width
    for i in range(rows):
        for j in range(columns):
            top, left = min(j, rows - 1) * height, min(i, columns - 1) * width
            actual[i * height :, j * width :][:height, :width] = oracle[
                top : top + height, left : left + width
            ]
    return actual


@pytest.mark.parametrize(
    ("shape", "block"),
    [((16, 16), (8, 8)), ((24, 16), (8, 8)), ((32, 8), (8, 4))],
)
def test_swapped_block_indices(shape, block):
    oracle = np.random.default_rng(0).normal(size=shape)
    sentence = f"block (i, j) of {block} holds what belongs in block (j, i): swapped indices?"
    assert relations(swapped(oracle, *block), oracle) == (sentence,)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_one_page_for_all_of_them_is_no_swap(shape):
    """Swapped indices of one row of blocks would be those of the first block, too."""
    oracle = np.random.default_rng(0).normal(size=shape)
    sentence = "each block of (8, 8) holds what belongs in the first one: a constant index?"
    assert relations(swapped(oracle, 8, 8), oracle) == (sentence,)


def test_the_last_page_for_those_beyond_it_is_no_swap():
    """Blocks that can swap are right, as far as a swap shows there."""
    oracle = np.random.default_rng(0).normal(size=(24, 16))
    oracle[8:16, :8] = oracle[:8, 8:]
    actual = swapped(oracle, 8, 8)
    assert not (actual != oracle)[:16].any()
    assert not any("swapped" in sentence for sentence in relations(actual, oracle))


def test_swapped_blocks_of_any_leading_index():
    oracle = np.random.default_rng(0).normal(size=(3, 16, 24))
    actual = np.stack([swapped(plane, 8, 8) for plane in oracle])
    assert "block (i, j) of (8, 8)" in relations(actual, oracle)[0]
    actual[0] = oracle[0] + 1
    assert relations(actual, oracle) == ()
