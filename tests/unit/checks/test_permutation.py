"""``checks.permutation``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import NotApplicableError, Permuted, SpecError
from pytest_pallas.checks.relations import permutation, subjects
from pytest_pallas.draw.arguments import Arguments


def shared(context_of, kernel, reference, *relations, **rest):
    return permutation(context_of(kernel, reference, relations=relations, **rest))


def test_rows_that_are_alike(context_of, doubled):
    for exact in (True, False):
        asked = Permuted({0: 0}, output=0, exact=exact), Permuted({0: -1}, output=1, exact=exact)
        finding = shared(context_of, doubled, lambda x: 2 * x, *asked)
        assert finding.failed is None
        assert len(finding.comparisons) == 4


def test_a_row_that_the_reference_treats_alike(context_of, doubled):
    def first(x):
        return jnp.where(jnp.arange(8)[:, None] == 0, 0, x)

    finding = shared(
        context_of,
        lambda x: first(doubled(x)),
        lambda x: first(2 * x),
        Permuted({0: 0}, output=0),
    )
    assert finding.failed is not None
    assert "the earlier output, permuted along axis 0" in finding.subject


def test_an_answer_that_does_not_change(context_of, doubled):
    """Another order of summation is judged by the rule, and to the bit where the spec is exact."""

    def total(y):
        return y[:, :1] * 0 + jnp.sum(y, axis=1, keepdims=True)

    def kernel(x):
        return total(doubled(x))

    def reference(x):
        return total(2 * x)

    asked = Permuted({0: 1})
    assert shared(context_of, kernel, reference, asked).failed is None
    small = Arguments((np.arange(1024, dtype=np.float32).reshape(8, 128) % 16,))
    for exact in (True, False):
        seen = shared(context_of, kernel, reference, asked, arguments=small, exact=exact)
        assert seen.failed is None
    wrong = shared(
        context_of, lambda x: kernel(x) + x[:, -1:], lambda x: reference(x) + x[:, -1:], asked
    )
    assert wrong.failed is not None


def test_exact_says_to_the_bit(context_of, doubled):
    def kernel(x):
        return doubled(x) * (1 + 2.0**-22 * (jnp.arange(8) == 0)[:, None])

    for exact in (True, False):
        finding = shared(
            context_of, kernel, lambda x: 2 * x, Permuted({0: 0}, output=0, exact=exact)
        )
        assert (finding.failed is None) == (not exact)


def test_a_wrong_kernel_is_compared_with_the_oracle_too(context_of, doubled):
    """Wrong in a way that keeps the relation."""
    finding = shared(
        context_of, lambda x: doubled(x) + 1, lambda x: 2 * x, Permuted({0: 0}, output=0)
    )
    assert finding.failed is not None
    assert finding.subject.endswith("compared with the oracle of the permuted call")


def test_pytrees_and_an_axis_for_each_output(context_of, doubled):
    def kernel(x, tree):
        return {"same": jnp.sum(doubled(x) * tree["w"], 0), "rows": doubled(x)}

    def reference(x, tree):
        return {"same": jnp.sum(2 * x * tree["w"], 0), "rows": 2 * x}

    x, w = np.random.default_rng(0).standard_normal((2, 8, 128)).astype(np.float32)
    arguments = Arguments((x, {"w": w}))
    args = {0: 0, 1: 0}
    right, wrong = Permuted(args, output=(0, None)), Permuted(args, output=(None, 0))
    assert shared(context_of, kernel, reference, right, arguments=arguments).failed is None
    with pytest.raises(SpecError, match=r"shape \(128,\), without an axis 0 of size 8"):
        shared(context_of, kernel, reference, wrong, arguments=arguments)
    with pytest.raises(SpecError, match="1 entries for 2 outputs"):
        shared(context_of, kernel, reference, Permuted(args, output=(0,)), arguments=arguments)


def test_axes_that_do_not_fit(context_of, doubled):
    with pytest.raises(SpecError, match=r"argument 0 has shape \(8, 128\) and no axis 2"):
        shared(context_of, doubled, lambda x: 2 * x, Permuted({0: 2}))


def test_sizes_that_differ(context_of, doubled):
    arguments = Arguments((np.ones((8, 128), np.float32), np.ones(4, np.float32)))
    with pytest.raises(SpecError, match="8 along axis 0 of argument 0, 4 along axis 0"):
        shared(
            context_of, lambda x, y: doubled(x), lambda x, y: 2 * x, Permuted({0: 0, 1: 0}),
            arguments=arguments,
        )  # fmt: skip


def test_one_element_has_one_order(context_of, doubled):
    arguments = Arguments((np.ones((1, 128), np.float32),))
    rows = Permuted({0: 0}, output=0)
    with pytest.raises(
        NotApplicableError, match="no Permuted of the spec applies to the drawn call"
    ):
        shared(context_of, doubled, lambda x: 2 * x, rows, arguments=arguments)
    spec: Any = SimpleNamespace(relations=[rows, Permuted({0: 1}, output=1)])
    assert subjects(spec, arguments) == [1]


def test_it_needs_a_relation(context_of):
    with pytest.raises(NotApplicableError, match=r"relations=\[Permuted"):
        permutation(context_of())


@pytest.mark.parametrize(
    ("args", "output"), [({}, None), ({-1: 0}, 0), ({0: "x"}, 0), ({0: 0}, "x")]
)
def test_what_cannot_be_meant(args, output):
    with pytest.raises(SpecError, match="Permuted: args must map"):
        Permuted(args, output=output)
