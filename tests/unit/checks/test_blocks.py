"""``checks.blocks``."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

from pytest_pallas import NotApplicableError
from pytest_pallas import strategies as pst
from pytest_pallas.checks.blocks import blocks, requires_spec
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
    assert requires_spec(spec(defaults, drawn)) is None
    assert requires_spec(spec(required, drawn)) == "the kernel has no default for block"
    assert requires_spec(spec(doubled, {})) == "its inputs draw no tuning"
    on_mesh = dataclasses.replace(
        spec(defaults, drawn), inputs=lambda mesh: st.nothing(), meshes=({"x": 2},)
    )
    assert "mesh" in (requires_spec(on_mesh) or "")
