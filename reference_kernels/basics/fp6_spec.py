"""Specs of ``fp6``."""

from __future__ import annotations

from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec
from reference_kernels._gaps import PACKING, without
from reference_kernels.basics.fp6 import (
    dequantize_fp6,
    dequantize_reference,
    split_fp6,
    split_reference,
)

_DIMS = {"quarter": [1, 31, 32, 33], "n": [1, 127, 128, 129]}

_OPTIONS = {"by_widths": st.booleans()}

_XFAIL = {
    "tpu-compile:v4": ExpectedFailure(
        reason="the compiler for v4 dies of types of 2 bits", jax="0.12.0.1"
    ),
}


def _typical(shapes: str) -> tuple[pst.Arguments, ...]:
    return tuple(
        pst.shaped(
            shapes,
            dtype="int8",
            dims={"quarter": 512, "m": 2048, "half": 1024, "n": 1024},
            options={"by_widths": by_widths},
        )
        for by_widths in (False, True)
    )


@st.composite
def _codes(draw: st.DrawFn) -> pst.Drawn:
    drawn = draw(pst.arrays("m n; m = 4*quarter", dtype="int8", dims=_DIMS, values="uniform"))
    return pst.Drawn([drawn[0] & 63], drawn.recipe, declared=drawn.declared)


#: None with JAX before 0.12, which lacks ``pack_fp6``.
SPECS = (
    [
        KernelSpec(
            name="split_fp6",
            kernel=split_fp6,
            reference=split_reference,
            inputs=pst.arguments(_codes(), options=_OPTIONS, tuning={"block_rows": 128}),
            typical=_typical("m n"),
            backends=without(PACKING),
            xfail=_XFAIL,
        ),
        KernelSpec(
            name="dequantize_fp6",
            kernel=dequantize_fp6,
            reference=dequantize_reference,
            inputs=pst.arguments(
                pst.arrays(
                    "quarter n, half n; half = 2*quarter",
                    dtype="int8",
                    dims=_DIMS,
                    values="uniform",
                ),
                options=_OPTIONS,
                tuning={"block_rows": 128},
            ),
            typical=_typical("quarter n, half n"),
            backends=without(PACKING),
            xfail=_XFAIL,
        ),
    ]
    if hasattr(pltpu, "pack_fp6")
    else []
)
