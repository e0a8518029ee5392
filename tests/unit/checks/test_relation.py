"""``checks.relation``."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import KernelSpec, Linear, NotApplicableError, Permuted, Relation, SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.backends.registry import FAMILIES
from pytest_pallas.checks.relations import relation
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.run.nodes import problem_with


def shifted(arguments, rng):
    """``x`` plus a number that is said to ``expect``."""
    by = int(rng.integers(1, 9))
    args = tuple(np.asarray(arg) + np.float32(by) for arg in arguments.args)
    return dataclasses.replace(arguments, args=args, recipe={"by": by})


SHIFTED = Relation("shifted", shifted, lambda outputs, changed: outputs + 2 * changed.recipe["by"])


def test_what_was_drawn_by_change_is_known_to_expect(context_of, doubled):
    finding = relation(context_of(doubled, relations=(SHIFTED,)))
    assert finding.failed is None
    assert len(finding.comparisons) == 1


def test_the_change_is_the_same_for_the_same_call(context_of, doubled):
    seen = []

    def change(arguments, rng):
        seen.append(rng.integers(1000))
        return arguments

    for values in (0, 0, 1):
        arguments = Arguments((np.full((8, 128), values, np.float32),))
        asked = (Relation("r", change),)
        relation(context_of(doubled, relations=asked, arguments=arguments))
    assert seen[0] == seen[1] != seen[2]


def test_a_mistake_that_the_reference_shares(context_of, doubled):
    finding = relation(
        context_of(lambda x: doubled(jnp.abs(x)), lambda x: 2 * abs(x), relations=(SHIFTED,))
    )
    assert finding.failed is not None
    assert finding.subject.startswith("shifted: f(change(x))")


def test_exact_or_by_the_rule(context_of, doubled):
    def kernel(x):
        return doubled(x) * (1 + 2.0**-22 * (x.shape[0] == 16))

    def longer(arguments, rng):
        return dataclasses.replace(arguments, args=(np.concatenate(2 * arguments.args),))

    for exact in (True, False):
        asked = Relation("longer", longer, lambda y, _: np.concatenate([y, y]), exact=exact)
        finding = relation(context_of(kernel, relations=(asked,)))
        assert (finding.failed is None) == (not exact)


def test_outputs_of_another_shape_fail(context_of, doubled):
    asked = Relation("other", lambda arguments, rng: arguments, lambda y, _: y[:4])
    for exact in (True, False):
        finding = relation(
            context_of(doubled, relations=(dataclasses.replace(asked, exact=exact),))
        )
        assert finding.failed is not None
        assert finding.failed.kind == "shape"


def test_mistakes_of_the_relation_are_named(context_of, doubled):
    def raises(*_):
        raise ValueError("no such thing")

    for asked, words in (
        (Relation("r", raises), "relation 'r': change raised ValueError: no such thing"),
        (Relation("r", lambda a, rng: a, raises), "relation 'r': expect raised ValueError"),
        (Relation("r", lambda a, rng: a.args), "change returned tuple, not strategies.Arguments"),
    ):
        with pytest.raises(SpecError, match=words):
            relation(context_of(doubled, relations=(asked,)))


def test_it_needs_a_relation(context_of):
    with pytest.raises(NotApplicableError, match=r"relations=\[Relation"):
        relation(context_of(relations=(Linear(0),)))


def test_change_must_be_a_function():
    with pytest.raises(SpecError, match="Relation 'r': change and expect must be functions"):
        Relation("r", None)


def spec(**rest):
    return KernelSpec(
        name="k", kernel=jnp.sin, reference=jnp.sin, inputs=pst.arrays("n"),
        backends=("interpret",), **rest,
    )  # fmt: skip


def test_what_a_spec_refuses():
    with pytest.raises(SpecError, match=r"relations must be Linear\(\.\.\.\).* not 'linear'"):
        spec(relations=("linear",))
    with pytest.raises(SpecError, match="implementations must map names to functions"):
        spec(implementations={"other": 3})


@pytest.mark.parametrize("asked", [Linear(1), Linear((0, 2)), Permuted({0: 0, 1: 0})])
def test_positions_that_the_inputs_do_not_have(asked):
    problem = problem_with(
        spec(relations=(asked,)), {}, {family.name: family for family in FAMILIES}
    )
    assert "inputs draw 1 positional arguments" in (problem or "")
    fine = spec(relations=(Linear(0), Permuted({0: 0}, output=0)))
    assert problem_with(fine, {}, {family.name: family for family in FAMILIES}) is None
