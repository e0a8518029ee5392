"""``checks.jit``."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pytest_pallas import NotApplicableError
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.checks.forward import jit


def traced(x):
    """Whether a value is not known yet."""
    try:
        np.asarray(x)
    except jax.errors.TracerArrayConversionError:
        return True
    return False


def scaled_when_eager(doubled, factor):
    return lambda x: doubled(x) * (1 if traced(x) else factor)


def test_the_same_bits_are_found_equal(context_of, doubled):
    [comparison] = jit(context_of(doubled)).comparisons
    assert comparison.kind == "bitwise"
    assert comparison.passed


def test_other_bits_are_judged_by_the_oracle(context_of, doubled):
    finding = jit(context_of(scaled_when_eager(doubled, 1 + 2**-23)))
    assert finding.failed is None
    assert [comparison.kind for comparison in finding.comparisons] == ["close"]
    assert [str(note) for note in finding.notes] == ["not bitwise equal to the jitted call"]
    assert jit(context_of(scaled_when_eager(doubled, 1.001))).failed is not None


def test_other_outputs_fail(context_of, doubled):
    def kernel(x):
        return doubled(x) if traced(x) else (doubled(x), doubled(x))

    failed = jit(context_of(kernel)).failed
    assert failed is not None
    assert failed.kind == "tree"


def test_it_needs_jit(context_of):
    with pytest.raises(NotApplicableError, match="jit=False"):
        jit(context_of(settings=RunSettings(jit=False)))
