"""``checks.oracle_strength``."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import KernelSpec, MismatchError, SpecError, Tolerance, check
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


W = np.random.default_rng(1).standard_normal((7, 7)).astype(np.float32)


def strength(context_of, reference, *args, kernel=lambda *_: 1 / 0, **rest):
    context = context_of(kernel, reference, arguments=Arguments(args), **rest)
    return oracle_strength(context).evidence


@pytest.mark.parametrize(
    ("reference", "unused"),
    [
        (lambda x, w: x @ w, None),
        (lambda x, w: jnp.abs(x) @ jnp.abs(w), None),
        (lambda x, w: (x > 0) @ w, None),
        (lambda x, w: x @ jnp.zeros_like(w) + 2.5, "argument 0 and argument 1"),
        (lambda x, w: x @ (0 * w) + w[0], "argument 0"),
        (lambda x, w: jax.nn.softmax(x).sum(1) * w[0], "argument 0"),
        (lambda x, w: np.asarray(w) + np.float32(1), "argument 0"),
        (lambda x, w: jnp.where(jnp.isnan(x), 0.0, w), "argument 0"),
    ],
)
def test_an_answer_that_does_not_depend_on_an_argument(context_of, reference, unused):
    problem = conclude([strength(context_of, reference, NORMAL, W)] * 4)
    if unused is None:
        assert problem is None
    else:
        assert f"the output does not depend on {unused} in all 4 examples" in problem


def test_a_leaf_is_named(context_of):
    evidence = strength(context_of, lambda tree: 2 * tree["b"], {"a": NORMAL, "b": W})
    assert evidence.unused == ("argument 0['a']",)
    assert "depend on argument 0['a'] in the one example" in conclude([evidence])


def test_one_example_with_an_effect_is_enough(context_of):
    """A length or a flag may leave a call without one."""

    def reference(x, count):
        return jnp.where(jnp.arange(7) < count, x, 0.0) + 1

    none, some = (strength(context_of, reference, NORMAL, np.int32(n)) for n in (0, 3))
    assert none.unused == some.used == ("argument 0",)
    assert conclude([none, none, none, none, some]) is None
    assert "does not depend on argument 0" in conclude([none] * 5)
    plain = strength(context_of, lambda x, count: x, NORMAL, np.int32(1))
    assert conclude([none, plain, plain]) is None


@pytest.mark.parametrize(
    "other",
    [np.int32(3), np.arange(7), np.ones((7, 7), bool), jax.random.key(0)],
    ids=["seed", "indices", "mask", "key"],
)
def test_integers_may_have_no_effect(context_of, other):
    assert conclude([strength(context_of, lambda x, _: x, NORMAL, other)] * 4) is None


def test_a_kernel_of_integers_depends_on_one_of_them(context_of):
    x = np.arange(49, dtype=np.int32).reshape(7, 7)
    assert conclude([strength(context_of, lambda a, b: a + 0 * b, x, x)] * 4) is None
    problem = conclude([strength(context_of, lambda a, b: 0 * (a + b) + 3, x, x)] * 4)
    assert "does not depend on any argument" in problem


@pytest.mark.parametrize("seed", [np.int32(3), np.array([1, 2], np.uint32), jax.random.key(0)])
def test_a_kernel_of_a_seed_may_have_a_reference_without_one(context_of, seed):
    assert conclude([strength(context_of, lambda _: np.zeros((3, 5), bool), seed)] * 4) is None


def test_a_buffer_for_the_output_has_no_effect(context_of):
    def into(x, buffer):
        def body(x_ref, _, o_ref):
            o_ref[...] = 2 * x_ref[...]

        return pl.pallas_call(body, out_shape=x, input_output_aliases={1: 0})(x, buffer)

    def separate(x, buffer):
        def body(x_ref, _, o_ref):
            o_ref[...] = 2 * x_ref[...]

        return pl.pallas_call(body, out_shape=x)(x, buffer)

    def evidence(kernel, **rest):
        return strength(context_of, lambda x, _: 2 * x, NORMAL, W[:, :5], kernel=kernel, **rest)

    assert evidence(separate).unused == ("argument 1",)
    same = strength(context_of, lambda x, _: 2 * x, NORMAL, W, kernel=into)
    assert not same.unused
    ignored = evidence(separate, ignored=lambda x, buffer: (None, np.ones(buffer.shape, bool)))
    assert not ignored.unused


def test_a_call_is_judged_where_the_check_is_named():
    def kernel(x):
        return pl.pallas_call(lambda x_ref, o_ref: o_ref.set(2 * x_ref[...]), out_shape=x)(x)

    weak = functools.partial(check, kernel, NORMAL, backend="tpu-sim", checks="oracle-strength")
    weak(reference=lambda x: 2 * x)
    with pytest.raises(MismatchError, match="does not depend on argument 0 in the one example"):
        weak(reference=lambda x: jnp.ones_like(x))
