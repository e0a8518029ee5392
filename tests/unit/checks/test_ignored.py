"""``checks.ignored``."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas.checks.padding import masks_of, poisoned
from pytest_pallas.draw.arguments import Arguments

MASK = np.array([False, True, True, False])


def poison_of(array, mask=MASK):
    """What is in the ignored elements, by its name."""
    found = {}
    for words, (changed, other) in poisoned((array, "as it is"), [mask, None]):
        assert other == "as it is"
        assert (np.asarray(changed)[~mask] == np.asarray(array)[~mask]).all()
        found[words.partition(" in the")[0]] = np.asarray(changed)[mask].tolist()
    return found


def test_floats_get_nan_infinities_and_extremes():
    top = float(np.finfo(np.float32).max)
    found = poison_of(jnp.arange(4.0, dtype=jnp.float32))
    assert np.isnan(found.pop("with NaN")).all()
    assert found == {
        "with infinities": [np.inf, -np.inf],
        "with the largest number": [top, top],
        "with the lowest number": [-top, -top],
    }


@pytest.mark.parametrize(
    ("array", "high", "low"),
    [
        (np.array([5, 9, 2, 3], np.int32), 9, 2),  # may be indices, and stay legal ones
        (np.array([5, 9, 2, 3], np.int8), 127, -128),
        (np.array([5, 9, 2, 3], ml_dtypes.uint4), 15, 0),
        (np.array([True, False, True, True]), True, False),
    ],
)
def test_integers_and_bools(array, high, low):
    assert poison_of(array) == {
        "with the largest number": [high, high],
        "with the lowest number": [low, low],
    }


def test_inputs_are_left_alone():
    array = np.arange(4.0)
    for _ in poisoned((array,), [MASK]):
        pass
    assert array.tolist() == [0, 1, 2, 3]


ARGUMENTS = Arguments((np.zeros((2, 3)), 7), {"causal": True})


def test_it_is_called_as_the_reference_is():
    masks = masks_of(lambda x, n, *, causal: (np.full(x.shape, causal), None), ARGUMENTS)
    assert masks is not None
    assert masks[0].all()
    assert masks[1] is None


def test_no_element_is_no_mask():
    assert masks_of(None, ARGUMENTS) is None
    assert masks_of(lambda x, n, causal: (np.zeros((2, 3), bool), None), ARGUMENTS) is None


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((None,), "for each of the 2 positional arguments, not 1 entries"),
        (None, "for each of the 2 positional arguments, not <class 'NoneType'>"),
        ((np.zeros((3, 2), bool), None), r"argument 0 has shape \(3, 2\), .* \(2, 3\)"),
        ((np.zeros((2, 3)), None), "argument 0 has dtype float64"),
        ((None, np.zeros(1, bool)), r"argument 1 has shape \(1,\), .* is no array"),
    ],
)
def test_what_cannot_be_a_mask(returned, words):
    with pytest.raises(SpecError, match=words):
        masks_of(lambda *args, **options: returned, ARGUMENTS)


def test_it_says_what_was_raised():
    with pytest.raises(SpecError, match="ignored raised TypeError"):
        masks_of(lambda x: (None,), ARGUMENTS)
