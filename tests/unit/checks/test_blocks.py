"""``checks.blocks``."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import KernelError, MismatchError, NotApplicableError
from pytest_pallas import strategies as pst
from pytest_pallas.checks.forward import _requires_tuning, blocks
from pytest_pallas.checks.verdict import run_check
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.spec import KernelSpec

X = np.arange(1024, dtype=np.float32).reshape(8, 128) % 16


def off_by(doubled, wrong):
    return lambda x, *, block=64: doubled(x) + wrong.get(block, 0)


def context(context_of, kernel, **rest):
    return context_of(kernel, arguments=Arguments((X,), tuning={"block": 8}), **rest)


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [({}, None), ({64: 1}, "default tuning instead of the drawn one"), ({8: 1}, "")],
)
def test_both_are_judged(context_of, doubled, wrong, subject):
    finding = blocks(context(context_of, off_by(doubled, wrong)))
    assert (finding.failed is None) == (subject is None)
    assert finding.subject == (subject or "")


def test_a_wrong_default_is_shown_with_the_default(context_of, doubled):
    wrong = context(context_of, off_by(doubled, {64: 1}))
    with pytest.raises(MismatchError, match=r"tuning +block=64") as caught:
        run_check(blocks, wrong, "k")
    assert "block=8" not in str(caught.value)


def multiples(doubled, error=ValueError):
    """A kernel that takes multiples of its block only."""

    def kernel(x, *, block=64):
        if x.shape[0] % block:
            raise error(f"rows must be a multiple of {block}")
        return doubled(x)

    return kernel


@pytest.mark.parametrize("error", [ValueError, AssertionError, NotImplementedError])
def test_a_default_that_does_not_fit_is_not_compared(context_of, doubled, error):
    text = rf"default tuning \(block=64\), .*{error.__name__}: rows must be a multiple of 64; draw"
    with pytest.raises(NotApplicableError, match=text):
        blocks(context(context_of, multiples(doubled, error)))


def test_a_wrapper_that_passes_on_what_it_gets(context_of, doubled):
    """Its signature does not show whether there is a default."""

    def required(x, *, block):
        return doubled(x)

    def wrapper(x, **tuning):
        return required(x, **tuning)

    with pytest.raises(NotApplicableError, match=r"with its default tuning, .* 'block'; draw"):
        blocks(context(context_of, wrapper))
    passes_on = off_by(doubled, {})
    assert blocks(context(context_of, lambda x, **tuning: passes_on(x, **tuning))).failed is None


def test_what_a_simulator_finds_with_the_default_fails(context_of):
    def beyond(x, *, block=16):
        def body(x_ref, o_ref):
            start = x_ref[0, 0].astype(int) + block - 8
            o_ref[...] = 2 * x_ref[pl.ds(start, 8)]

        return pl.pallas_call(body, out_shape=x)(x)

    with pytest.raises(KernelError, match=r"tuning +block=16"):
        run_check(blocks, context(context_of, beyond), "k")


def test_exact_kernels_agree_to_the_bit(context_of, doubled):
    kernel = off_by(doubled, {64: 2.0**-20})  # less than the tolerance
    assert blocks(context(context_of, kernel)).failed is None
    assert blocks(context(context_of, kernel, exact=True)).failed is not None


def test_it_needs_tuning(context_of):
    with pytest.raises(NotApplicableError, match="tuning="):
        blocks(context_of())


def test_which_specs_have_two_tunings(doubled):
    def spec(kernel, tuning):
        inputs = pst.arguments(pst.arrays("n", around=8), tuning=tuning)
        return KernelSpec(name="k", kernel=kernel, reference=doubled, inputs=inputs)

    def defaults(x, *, block=64):
        return x

    def required(x, *, block):
        return x

    drawn = {"block": st.sampled_from([8, 16])}
    assert _requires_tuning(spec(defaults, drawn)) is None
    assert _requires_tuning(spec(required, drawn)) == "the kernel has no default for block"
    assert _requires_tuning(spec(doubled, {})) == "its inputs draw no tuning"
    on_mesh = dataclasses.replace(
        spec(defaults, drawn), inputs=lambda mesh: st.nothing(), meshes=({"x": 2},)
    )
    assert "mesh" in (_requires_tuning(on_mesh) or "")
