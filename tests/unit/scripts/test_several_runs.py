"""What scripts do that run a kernel several times is what its checks do."""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.checks import ignored
from pytest_pallas.scripts.standalone import parts, related, uninitialized

DTYPES = sorted(
    ("bool", "int4", "int8", "uint8", "int16", "int32", "bfloat16", "float8_e4m3fn", "float32")
)


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
def test_ignored_elements_get_the_same_poison(dtype):
    array = np.arange(6).reshape(2, 3).astype(np.dtype(dtype))
    mask = np.array([[True, False, True], [False, True, False]])
    args, masks = (array, np.ones(2, np.float32)), (mask, None)
    wanted = list(ignored.poisoned(args, masks))
    found = list(uninitialized.poisoned(args, masks))
    assert [f"with {words} in the ignored elements of the arguments" for words, _ in found] == [
        words for words, _ in wanted
    ]
    assert found
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert one[0].dtype == other[0].dtype
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1] is other[1]


def case(kernel: Any, *calls: Any, exact: bool = False, **claim: Any) -> parts.Case:
    """A case of one argument: the judged call's, then those of the others."""
    others = tuple(((x,), {}, {}) for x in calls[1:])
    more = {"others": others, "claim": claim, "exact": exact}
    limits = {"output": parts.Limit("close", 1.0)}
    backend = contextlib.nullcontext
    return parts.Case(kernel, kernel, (calls[0],), {}, {}, backend, limits, more)


X = np.array([1.0, -2.0, 3.0], np.float32)


def test_an_answer_is_a_multiple_of_another():
    assert not related.related(case(jnp.abs, 4 * X, X, exact=True, factor=4.0))
    assert related.related(case(jnp.abs, -4 * X, X, exact=True, factor=-4.0))


def test_multiples_are_not_compared_at_the_ends_of_the_range():
    tiny = X * np.float32(1e-38)

    def flushing(x: Any) -> Any:
        return jnp.where(jnp.abs(x) < 1.5e-38, 0, x)

    assert not related.related(case(flushing, 4 * tiny, tiny, exact=True, factor=4.0))
    huge = np.float32([5e37, 8e37])  # the claim overflows, which this kernel avoids
    capped = case(lambda x: jnp.clip(4 * x, -3e38, 3e38), 4 * huge, huge, exact=True, factor=4.0)
    assert not related.related(capped)
    assert related.related(case(lambda x: x + 1, 4 * X, X, exact=True, factor=4.0))


def test_an_answer_is_the_sum_of_others():
    assert not related.related(case(lambda x: 2 * x, X, X - 1, np.ones_like(X)))
    assert related.related(case(jnp.square, X, X - 1, np.ones_like(X)))
    huge = np.float32([2e38, 3e38, 1.0])  # twice the second overflows, and half of it does not
    assert not related.related(case(lambda x: 2 * x, huge, huge / 2, huge / 2))


def test_an_answer_is_another_one_permuted():
    order = np.array([1, 2, 0])
    assert not related.related(case(jnp.abs, X[order], X, exact=True, order=order, axes=(0,)))
    assert related.related(case(jnp.abs, X[order], X, exact=True, order=order, axes=(None,)))
    assert not related.related(case(jnp.sum, X[order], X, order=order, axes=(None,)))


def test_zeros_and_nan_have_one_value_each():
    kernel = {"-": lambda x: -x, "+": lambda x: x}
    zeros = np.float32([0.0, np.nan])
    for each in kernel.values():
        assert not related.related(case(each, -zeros, zeros, exact=True, factor=1.0))


def test_integers_wrap_around():
    x = np.array([100], np.int8)
    assert not related.related(case(lambda x: x, np.array([-56], np.int8), x, factor=2))


def test_an_answer_of_another_shape_is_wrong():
    assert related.related(case(lambda x: x[1:] if x.shape[0] == 3 else x, X, X[1:2], expect=None))
    assert not related.related(case(lambda x: x, X, X, expect=None))


def test_a_function_says_what_an_answer_must_be():
    def doubled(outputs: Any, changed: Any) -> Any:
        assert outputs.dtype == np.float64
        return outputs * changed.recipe["times"] + 0 * changed.args[0]

    given: dict[str, Any] = {"expect": doubled, "recipe": {"times": 2}}
    assert not related.related(case(lambda x: x, 2 * X, X, **given))
    assert related.related(case(jnp.square, 2 * X, X, **given))


@pytest.mark.parametrize(("ulps", "wrong"), [(1, False), (4, True)])
def test_narrow_floats_are_held_to_what_the_test_allowed(ulps, wrong, capsys):
    x = np.array([1.0, 1.0], ml_dtypes.bfloat16)
    off = (1 + ulps * 2.0**-7) * np.float32(1)

    def kernel(x: Any) -> Any:
        return jnp.where(x < 0, x * jnp.asarray(off, x.dtype), x)

    assert related.related(case(kernel, -x, x, factor=-1)) is wrong
    assert "of 2 elements are wrong; the test allowed 1 at (0,)" in capsys.readouterr().out
