"""``checks.cross``."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_sim.errors import KernelError
from pytest_pallas import NotApplicableError
from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import ComparisonPeer
from pytest_pallas.checks.cross import accepted, cross
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.judge.tolerance import Tolerance


def twin(function, name="twin", **rest):
    return ComparisonPeer(name=name, function=function, backend=tpu_sim(), is_kernel=False, **rest)


def off(factor):
    return lambda x: 2 * x * jnp.float32(factor)


SMALL = Arguments((np.arange(1024, dtype=np.float32).reshape(8, 128) % 16,))


def test_another_backend_with_the_same_bits(context_of, doubled):
    other = ComparisonPeer(name="tpu-interpret:v6e", function=doubled, backend=tpu_interpret(None))
    finding = cross(context_of(doubled, others=(other,)))
    assert finding.failed is None
    assert finding.notes == ()
    assert [c.where for c in finding.comparisons] == [
        "output of tpu-sim",
        "output of tpu-interpret:v6e",
    ]


def test_one_that_agrees_with_other_bits_is_noted(context_of, doubled):
    finding = cross(context_of(doubled, others=(twin(off(1 + 2.0**-23)),)))
    assert finding.failed is None
    assert [str(note) for note in finding.notes] == [
        "not bitwise equal to twin: the difference is up to 2 ulps of the output scale"
    ]


def test_which_of_two_departs(context_of, doubled):
    def wrong(x):
        return doubled(x) * 1.5

    right, bad = twin(lambda x: 2 * x), twin(off(1.5))
    for kernel, other, words in (
        (doubled, bad, "one of two differs from the oracle: twin by {} ulps, .*; tpu-sim does"),
        (wrong, right, "one of two differs from the oracle: tpu-sim by {} ulps, .*; twin does"),
        (wrong, bad, "both differ from the oracle: tpu-sim by {} ulps, .* and twin by {} ulps"),
    ):
        finding = cross(context_of(kernel, others=(other,)))
        assert finding.failed is not None
        assert re.search(words.replace("{}", r"[\d.e+]+"), finding.subject)
        side = None if finding.side is None else finding.side[0].kernel
        assert side is (bad.function if kernel is doubled else None)


def test_two_that_are_near_the_oracle_and_not_near_each_other(context_of, doubled):
    """The one is 5 ulps above and the other 5 below, where 2 + 4 + sqrt(128) may be between."""
    ulps = Tolerance(ulp=6.0)

    def above(x):
        return doubled(x) * (1 + 5 * 2.0**-23)

    finding = cross(
        context_of(above, others=(twin(off(1 - 5 * 2.0**-23)),), tolerance=ulps, arguments=SMALL)
    )
    assert finding.failed is not None
    assert finding.subject == ("tpu-sim and twin differ, although each agrees with the oracle")
    assert cross(context_of(above, others=(twin(off(1)),), tolerance=ulps)).failed is None


def test_exact_where_the_spec_is(context_of, doubled):
    other = twin(off(1 + 2.0**-22))
    for exact in (True, False):
        finding = cross(context_of(doubled, others=(other,), exact=exact, arguments=SMALL))
        assert (finding.failed is None) == (not exact)
    assert (
        "twin by"
        in cross(context_of(doubled, others=(other,), exact=True, arguments=SMALL)).subject
    )


def test_nan_dtype_and_shape_are_words(context_of, doubled):
    for function, words in (
        (lambda x: 2 * x / 0, "twin by NaN or infinity on one side only"),
        (lambda x: (2 * x).astype(jnp.bfloat16), "twin by its dtype"),
        (lambda x: (2 * x)[:4], "twin by its shape"),
        (lambda x: (2 * x, x), "twin by its tree"),
    ):
        assert words in cross(context_of(doubled, others=(twin(function),))).subject


def test_tuning_goes_to_those_that_take_it(context_of, doubled):
    def kernel(x, *, block, chunk):
        return doubled(x)

    seen = []

    def other(x, *, block):
        seen.append(block)
        return 2 * x

    arguments = Arguments(SMALL.args, tuning={"block": 8, "chunk": 2})
    assert cross(context_of(kernel, others=(twin(other),), arguments=arguments)).failed is None
    assert set(seen) == {8}
    assert accepted(lambda x, **rest: x, {"block": 8}) == ["block"]
    assert accepted(lambda x: x, {"block": 8}) == []


def test_who_raised_is_said(context_of, doubled):
    def other(x):
        raise ValueError("no such size")

    with pytest.raises(KernelError, match=r"the other side, twin, raised: .* no such size"):
        cross(context_of(doubled, others=(twin(other),)))


def test_it_needs_others(context_of):
    with pytest.raises(NotApplicableError, match="implementations"):
        cross(context_of())
