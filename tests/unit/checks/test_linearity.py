"""``checks.linearity``."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import Linear, NotApplicableError, SpecError
from pytest_pallas.checks.relations import divided, linearity
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.draw.values import generate


def values(kind, dtype="float32", shape=(8, 128)):
    return Arguments((generate(kind, shape, np.dtype(dtype), seed=1),))


INTEGERS = ("int32", "int8", "uint8")


@pytest.mark.parametrize("kind", ["integers", "normal", "wide", "cancelling", "tiny", "special"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", *INTEGERS])
def test_what_is_linear_passes(context_of, doubled, kind, dtype):
    finding = linearity(
        context_of(doubled, relations=(Linear(0),), arguments=values(kind, dtype), nan_ok=True)
    )
    assert finding.failed is None
    # Doubling or negating these would wrap around, so only the sum is asked.
    extreme = (kind, dtype) in {*(("special", each) for each in INTEGERS), ("wide", "uint8")}
    assert len(finding.comparisons) == (1 if extreme else 2)


WRONG = {
    "clamped": lambda y: jnp.minimum(y, 100),
    "rectified": lambda y: jnp.maximum(y, 0),
    "shifted": lambda y: y + 2.0**-12,
    "squared": lambda y: y * abs(y),
    "rounded to integers": jnp.round,
    "flushed": lambda y: jnp.where(abs(y) < 1 / 16, 0, y),
}


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_a_mistake_that_the_reference_shares(context_of, doubled, wrong):
    found = [
        linearity(
            context_of(
                lambda x: WRONG[wrong](doubled(x)),
                lambda x: WRONG[wrong](2 * x),
                relations=(Linear(0),),
                arguments=values(kind),
            )
        )
        for kind in ("integers", "normal")
    ]
    assert any(finding.failed is not None for finding in found)


def test_terms_that_meet_are_added(context_of, doubled):
    """Homogeneous, odd, and not additive: only the sum shows it."""

    def largest(x):
        return jnp.where(abs(x) == abs(x).max(axis=1, keepdims=True), x, 0)

    def kernel(x):
        return doubled(largest(x))

    finding = linearity(
        context_of(
            kernel, lambda x: 2 * largest(x), relations=(Linear(0),), arguments=values("wide")
        )
    )
    assert finding.failed is not None
    assert "f(a) + f(b)" in finding.subject


def test_scaling_is_exact_unless_the_relation_says_otherwise(context_of, doubled):
    def kernel(x):
        off = 2.0**-23 * (abs(x).max() > 100)  # within the rule of judgement
        return doubled(x) * (1 + off)

    for exact in (True, False):
        asked = Linear(0, exact=exact)
        finding = linearity(context_of(kernel, relations=(asked,), arguments=values("normal")))
        assert (finding.failed is None) == (not exact)


def with_a_small_term(x):
    """x + x / 2**11 + x / 2**23, whose last term float16 has, but not that of x / 2**8."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    small = (wide * 2.0**-23).astype(x.dtype)
    return (wide + wide * 2.0**-11 + small.astype(wide.dtype)).astype(x.dtype)


@pytest.mark.parametrize("wrong", [None, "clamped", "shifted", "flushed"])
def test_a_lost_term_may_decide_how_a_tie_is_rounded(context_of, doubled, wrong):
    """In one call the term decides, in the other there is a tie: they differ by an ulp."""
    after = {
        None: lambda y: y,
        "clamped": lambda y: jnp.maximum(y, -0.05),
        "shifted": lambda y: y + 2.0**-8,
        "flushed": lambda y: jnp.where(abs(y) < 1 / 2, 0, y),
    }[wrong]
    x = np.full((8, 128), 8, np.float16)
    finding = linearity(
        context_of(
            lambda x: after(doubled(with_a_small_term(x))),
            lambda x: after(2 * with_a_small_term(x)),
            relations=(Linear(0),),
            arguments=Arguments((x,)),
        )
    )
    assert (finding.failed is None) == (wrong is None)
    if wrong is not None:
        assert "2**-8" in finding.subject


def test_nothing_is_excused_where_no_term_can_be_lost(context_of, doubled):
    """The same ulp, and the reference computes with no number that is so small."""

    def kernel(x):
        return doubled(with_a_small_term(x))

    arguments = Arguments((np.full((8, 128), 8, np.float16),))
    given = {"relations": (Linear(0),), "arguments": arguments}
    assert linearity(context_of(kernel, lambda x: 2 * x, **given)).failed is not None


def test_several_arguments_together(context_of, doubled):
    def kernel(x, n, tree):
        return doubled(x) + n * tree["a"]

    def reference(x, n, tree):
        return 2 * x + n * tree["a"]

    (x,) = values("normal").args
    (a,) = values("wide").args
    arguments = Arguments((x, 3, {"a": a, "is": np.ones(2, bool)}))
    for asked, passes in ((Linear((0, 2)), True), (Linear(0), False)):
        finding = linearity(context_of(kernel, reference, relations=(asked,), arguments=arguments))
        assert (finding.failed is None) == passes


def test_an_exact_trial_has_room_for_roundings_only(context_of, doubled):
    """A kernel that is off by an ulp, where small integers leave no doubt."""

    def kernel(x):
        return doubled(x) * (1 + 2.0**-21 * (x[0, 0] == 3))

    x = np.full((8, 128), 3, np.float32)
    for exact in (True, False):
        context = context_of(
            kernel, relations=(Linear(0, exact=False),), arguments=Arguments((x,)), exact=exact
        )
        assert (linearity(context).failed is None) == (not exact)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e5m2", "int8", "uint8", "float16", "int4"]
)
@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_parts_add_up_and_differ(dtype, kind):
    (x,) = values(kind, dtype).args
    one, other = divided(x, np.random.default_rng(0))
    assert one.dtype == other.dtype == x.dtype
    wide = [np.asarray(each, np.float64) for each in (one, other, x)]
    np.testing.assert_array_equal(wide[0] + wide[1], wide[2])
    assert np.mean((wide[0] != 0) & (wide[1] != 0)) > 0.1


def test_draws_for_which_it_does_not_hold(context_of, doubled):
    asked = Linear(0, when=lambda arguments: arguments.args[0].shape[0] == 1)
    with pytest.raises(NotApplicableError, match="no Linear of the spec holds"):
        linearity(context_of(doubled, relations=(asked,)))


def test_it_needs_a_relation(context_of):
    with pytest.raises(NotApplicableError, match=r"relations=\[Linear"):
        linearity(context_of())


def test_it_needs_numbers(context_of, doubled):
    arguments = Arguments((np.ones((8, 128), bool),))
    with pytest.raises(SpecError, match=r"Linear\(0\): the argument holds no numbers"):
        linearity(
            context_of(
                lambda x: doubled(x * 1.0),
                lambda x: 2.0 * x,
                relations=(Linear(0),),
                arguments=arguments,
            )
        )


@pytest.mark.parametrize("argument", [-1, (), True, "x"])
def test_the_argument_of_linear_must_be_positions(argument):
    with pytest.raises(SpecError, match="Linear: argument must be the position"):
        Linear(argument)
