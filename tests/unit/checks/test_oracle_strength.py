"""``checks.oracle_strength``."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import KernelSpec, SpecError, Tolerance
from pytest_pallas import strategies as pst
from pytest_pallas.checks.oracle_strength import conclude, oracle_strength
from pytest_pallas.draw.arguments import Arguments

NORMAL = np.random.default_rng(0).standard_normal((7, 7)).astype(np.float32)
LOOSE = Tolerance(rtol=0.2, atol=0.2)


@pytest.fixture
def evidence_of(context_of):
    def evidence(x, reference=lambda x: jnp.multiply(x, 2), **rest):
        arguments = Arguments((x,))
        finding = oracle_strength(
            context_of(lambda x: 1 / 0, reference, arguments=arguments, **rest)
        )
        return finding.evidence

    return evidence


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(1,), (7, 7), (2, 9, 4)])
def test_the_default_rejects_all(evidence_of, dtype, shape):
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(jnp.dtype(dtype))
    evidence = evidence_of(x, lambda x: jnp.logical_not(x) if x.dtype == bool else x)
    assert evidence.attempts
    assert all(attempt.rejected for attempt in evidence.attempts)
    assert conclude([evidence]) is None


def test_a_loose_tolerance_is_named(evidence_of):
    problem = conclude([evidence_of(NORMAL * 0.1, tolerance=LOOSE)])
    assert "the output, scaled by 1.1: accepted in the one example" in problem
    assert "it changes an element by 10.0% of the output's scale" in problem
    assert "tolerance: Tolerance(rtol=0.2, atol=0.2)" in problem
    assert "tighten it" in problem


def test_one_example_that_rejects_is_enough(evidence_of):
    weak = evidence_of(NORMAL * 0.1, tolerance=LOOSE)
    strong = evidence_of(np.float32(100) + NORMAL * 100, tolerance=Tolerance(atol=0.2))
    assert conclude([weak, strong]) is None
    assert "in all 2 examples that it changes" in conclude([weak, weak])


def test_exact_specs_are_judged_exactly(evidence_of):
    x = np.round(NORMAL * 4)
    assert "scaled by 1.1" in conclude([evidence_of(x, tolerance=Tolerance(rtol=0.2))])
    assert conclude([evidence_of(x, tolerance=Tolerance(rtol=0.2), exact=True)]) is None


def test_up_to_which_size_integers_are_exact(evidence_of):
    x = np.round(NORMAL * 100)
    loose = Tolerance(rtol=0.2)
    assert "scaled by 1.1" in conclude([evidence_of(x, tolerance=loose, exact=True)])
    assert "scaled by 1.1" in conclude([evidence_of(x, tolerance=loose, exact=50)])
    assert conclude([evidence_of(x, tolerance=loose, exact=2**20)]) is None


def test_answers_that_say_nothing(evidence_of):
    nothing = evidence_of(NORMAL, jnp.zeros_like)
    assert nothing.attempts == ()
    problem = conclude([nothing, nothing])
    assert "the outputs of all 2 examples are zeros or empty" in problem
    assert conclude([nothing, evidence_of(NORMAL)]) is None
    assert "accepts a kernel that does nothing" in conclude([])


def test_data_that_hides_a_mistake(evidence_of):
    """Answers that nearly cancel: what another order of summation costs is more than they are."""
    x = np.array([1e7, -1e7, 1], np.float32)
    problem = conclude([evidence_of(x, lambda x: jnp.sum(x, keepdims=True))])
    assert "the output, scaled by 1.1: accepted" in problem
    assert "The tolerance is the default, so the data hides the mistake" in problem


def test_every_output_counts(evidence_of):
    def both(x):
        return {"strong": 100 * x, "weak": 0.01 * x}

    problem = conclude([evidence_of(NORMAL, both, tolerance=LOOSE)])
    assert "['weak'], rolled by one" in problem
    assert "['strong'], rolled by one" not in problem


def test_a_share_that_may_be_wrong_is_no_corruption(evidence_of):
    evidence = evidence_of(NORMAL, tolerance=Tolerance(fraction=0.2))
    kinds = {attempt.kind for attempt in evidence.attempts}
    assert "the 10 largest elements with the other sign" in kinds
    assert "one row replaced by its neighbour" not in kinds
    assert conclude([evidence]) is None


@pytest.mark.parametrize("exact", ["yes", 2.5, -1])
def test_a_wrong_size_of_what_is_exact(exact):
    with pytest.raises(SpecError, match="exact must be True, False or the largest integer"):
        KernelSpec(name="k", kernel=jnp.sin, reference=jnp.sin, inputs=pst.arrays("n"), exact=exact)
