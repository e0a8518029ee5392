"""``checks.verdict``."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.verdict import conclude, content_facts, run_check
from pytest_pallas.errors import KernelError, MismatchError, PallasTestError
from pytest_pallas.strategies.arguments import Arguments


def wrong(reference):
    return lambda x: reference(x) * 1.5


def raising(_):
    raise ValueError("no")


def test_a_failure_ends_with_what_was_drawn(context_of, doubled):
    with pytest.raises(MismatchError, match=r"wrong in 1024 of 1024(.|\n)*inputs    float32"):
        run_check(forward, context_of(wrong(doubled)), "twice")


@pytest.mark.parametrize("explained", [True, False])
def test_whether_it_is_explained_makes_no_other_difference(context_of, doubled, explained):
    run_check(forward, context_of(doubled, explained=explained), "twice")
    with pytest.raises(KernelError, match="ValueError: no"):
        run_check(forward, context_of(raising, explained=explained), "twice")


def test_a_failure_that_nobody_reads_says_what_failed(context_of, doubled):
    with pytest.raises(MismatchError, match=r"^twice: forward on tpu-sim$"):
        run_check(forward, context_of(wrong(doubled), explained=False), "twice")


def test_without_examples_nothing_is_concluded(context_of):
    backend = context_of().backend
    strict = dataclasses.replace(forward, conclude=lambda evidence: f"{len(evidence)} examples")
    conclude(strict, [], "twice", backend)
    with pytest.raises(MismatchError, match="1 examples"):
        conclude(strict, [1], "twice", backend)


def test_masks_and_ids_of_the_call_are_described():
    mask, ids = np.tril(np.ones((5, 5), bool)), np.array([0, 0, 1], np.int32)
    facts = content_facts(Arguments((np.ones(3), mask, {"ids": ids})))
    assert [(fact.name, fact.text) for fact in facts] == [
        ("mask", "argument 1: causal 5x5"),
        ("ids", "argument 2['ids']: int32[3] [0 0 1]"),
    ]


def test_a_failure_has_them(context_of):
    """Shapes alone have no contents."""
    arguments = Arguments((np.zeros((2, 2), bool), jax.ShapeDtypeStruct((2,), np.int32)))
    context = dataclasses.replace(context_of(lambda *_: raising(0)), arguments=arguments)
    with pytest.raises(PallasTestError, match=r"mask      argument 0: bool\[2, 2\], all False"):
        run_check(forward, context, "twice")
