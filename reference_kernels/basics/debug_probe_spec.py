"""Specs of ``debug_probe``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec, Linear
from reference_kernels._gaps import TRACE, without
from reference_kernels.basics.debug_probe import debug_probe, reference, timing_probe

_INPUTS = pst.arrays("m n", dtype=pst.floats(), dims={"m": [1, 7, 16, 17, 33], "n": [1, 127, 129]})

_TYPICAL = (pst.shaped("m n", dtype="float32", dims={"m": 1024, "n": 1024}),)

SPEC_DEBUG = KernelSpec(
    name="debug_probe",
    kernel=debug_probe,
    reference=reference,
    inputs=pst.arguments(_INPUTS, tuning={"block_rows": 16}),
    exact=True,
    relations=(Linear(0),),
    typical=_TYPICAL,
    xfail={
        "interpret": ExpectedFailure(
            reason="a print is a callback, which cannot be exported",
            jax="0.12.0.1",
            checks=("export",),
        )
    },
)

SPEC_TIMING = KernelSpec(
    name="timing_probe",
    kernel=timing_probe,
    reference=reference,
    inputs=pst.arguments(_INPUTS, tuning={"block_rows": 16}),
    exact=True,
    relations=(Linear(0),),
    typical=_TYPICAL,
    backends=without(TRACE),
)
