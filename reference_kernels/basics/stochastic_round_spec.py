"""Specs of ``stochastic_round``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import Tolerance
from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec, Permuted
from reference_kernels._gaps import ROUNDING, without
from reference_kernels.basics.stochastic_round import (
    reference,
    stochastic_round,
    stochastic_round_by_hand,
)


def _not_finite(drawn: pst.Drawn) -> pst.Drawn:
    """Some elements are infinite, and some a NaN whose bits carry beyond the sign."""
    x, bits = np.array(drawn[0]), drawn[1]
    x.flat[::7] = np.uint32(0x7FFFFFFF).view(np.float32)
    x.flat[3::7] = -np.inf
    return pst.Drawn((x, bits), {**drawn.recipe, "finite": False}, declared=drawn.declared)


_ARRAYS = pst.arrays(
    "m n, m n",
    dtype=("float32", "uint32"),
    dims={"m": [1, 7, 16, 17, 33], "n": [1, 127, 129]},
    values=("normal", "wide"),
)
_TUNING = {"block_rows": 16}

_TYPICAL = (pst.shaped("m n, m n", dtype=("float32", "uint32"), dims={"m": 4096, "n": 1024}),)

SPEC = KernelSpec(
    name="stochastic_round",
    kernel=stochastic_round,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning=_TUNING),
    typical=_TYPICAL,
    backends=without(ROUNDING),
    xfail={
        "tpu-compile:v4": ExpectedFailure(reason="from v5 on", jax="0.12.0.1"),
    },
)

SPEC_BY_HAND = KernelSpec(
    name="stochastic_round_by_hand",
    kernel=stochastic_round_by_hand,
    reference=reference,
    inputs=pst.arguments(st.one_of(_ARRAYS, _ARRAYS.map(_not_finite)), tuning=_TUNING),
    batch_axes=(0, 0),
    relations=(
        Permuted({0: 0, 1: 0}, output=0, exact=True),
        Permuted({0: 1, 1: 1}, output=1, exact=True),
    ),
    tolerance=Tolerance(rtol=0, atol=0),  # which neighbor it is, the bits decide
    typical=_TYPICAL,
)
