"""A right check made blind: a tolerance and data that hide what the kernel does wrong."""

from __future__ import annotations

import numpy as np

from pytest_pallas import Tolerance
from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .attention import attention_reference, naive_sees_one_key_too_many, sees_one_key_too_many


def _small(drawn: pst.Drawn) -> pst.Drawn:
    """A tenth of everything, as tests of models draw it to keep the numbers tame."""
    return pst.Drawn([np.float32(0.1) * x for x in drawn], {**drawn.recipe, "scaled": 0.1})


#: The causal mask is off by one, and no element is outside the tolerance.
SPEC_TOO_LOOSE = KernelSpec(
    name="too_loose",
    kernel=sees_one_key_too_many,
    reference=attention_reference,
    inputs=pst.arguments(
        pst.arrays(
            "t d, t d, t d", dtype="float32", values="normal", dims={"t": [7, 8, 13], "d": [4, 16]}
        ).map(_small),
        tuning={"block": 8},
    ),
    tolerance=Tolerance(rtol=0.5, atol=0.5),
    checks=("forward", "oracle-strength"),
)

naive_too_loose = naive_sees_one_key_too_many
