"""``checks.dtype``."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import MismatchError
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.checks.dtype import dtype
from pytest_pallas.judge.oracle import ExpectedCache


def test_nothing_is_executed(context_of, doubled):
    class Untouched(ExpectedCache):
        def get(self, *args, **options):
            raise AssertionError("the reference was evaluated")

    finding = dtype(context_of(doubled, cache=Untouched()))
    assert not finding.comparisons
    assert finding.outcome is None


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x: [2 * x], "structure: *, the reference [*]"),
        (lambda x: (2 * x)[1:], "output: float32[8, 128], the reference float32[7, 128]"),
        (
            lambda x: (2 * x).astype(jnp.bfloat16),
            "output: float32[8, 128], the reference bfloat16[8, 128]",
        ),
        (lambda x: np.asarray(x, np.float64) * 2, "the reference float64[8, 128]"),  # not traced
        (
            lambda x: jnp.full(x.shape, 2.0),
            "output: float32[8, 128], the reference weakly typed float32[8, 128]",
        ),
    ],
)
def test_every_difference_of_types_is_named(context_of, doubled, reference, words):
    with pytest.raises(MismatchError) as caught:
        dtype(context_of(doubled, reference))
    assert words in str(caught.value)


def test_every_difference_is_named_by_its_path(context_of, doubled):
    def several(x):
        return {"a": doubled(x), "b": doubled(x)}

    def reference(x):
        return {"a": 2 * x[1:], "b": (2 * x).astype(jnp.int32)}

    with pytest.raises(MismatchError, match=r"(?s)\['a'\]: float32.*\['b'\]: .*int32"):
        dtype(context_of(several, reference))


@pytest.mark.parametrize("nested", [False, True])
def test_a_list_is_as_good_as_a_tuple(context_of, doubled, nested):
    """``pallas_call`` returns a list where ``out_shape`` is one."""

    def as_list(x):
        return {"a": [doubled(x), [doubled(x)]]} if nested else [doubled(x)]

    def as_tuple(x):
        return {"a": (2 * x, (2 * x,))} if nested else (2 * x,)

    dtype(context_of(as_list, as_tuple))
    dtype(context_of(lambda x: (doubled(x),), lambda x: [2 * x]))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: [x, x], r"structure: \[\*, \*\], the reference \(\*,\)"),
        (lambda x: {"a": x}, r"structure: {'a': \*}, the reference \(\*,\)"),
        (lambda x: [[x]], r"structure: \[\[\*\]\], the reference \(\*,\)"),
        (lambda x: x, r"structure: \*, the reference \(\*,\)"),
    ],
)
def test_the_structure_is_that_of_the_reference(context_of, doubled, returned, words):
    with pytest.raises(MismatchError, match=words):
        dtype(context_of(lambda x: returned(doubled(x)), lambda x: (2 * x,)))


def test_dtypes_are_left_alone_where_that_is_asked(context_of, doubled):
    dtype(context_of(doubled, lambda x: (2 * x).astype(jnp.bfloat16), check_dtype=False))
    with pytest.raises(MismatchError, match=r"output: \[8, 128\], the reference \[7, 128\]"):
        dtype(context_of(doubled, lambda x: (2 * x)[1:], check_dtype=False))


def test_a_kernel_that_cannot_be_jitted_is_run(context_of, doubled):
    def looks(x):
        return doubled(x) if float(x[0, 0]) < 1e9 else x

    context = context_of(looks, settings=RunSettings(jit=False))
    dtype(context)
    assert sum(context.run_seconds) > 0
    with pytest.raises(MismatchError, match="the reference bfloat16"):
        dtype(
            context_of(
                looks, lambda x: (2 * x).astype(jnp.bfloat16), settings=RunSettings(jit=False)
            )
        )
