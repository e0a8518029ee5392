"""Specs of ``scoped``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._gaps import READING_SEMAPHORES, without
from reference_kernels.refs.scoped import octuple, octuple_counted, reference

_ARRAYS = pst.arrays(
    "m n", dtype=pst.dtypes("bfloat16", "float32", "int32"), around={"m": 16}, dims={"n": [1, 130]}
)

_PERMUTED = tuple(Permuted({0: axis}, output=axis, exact=True) for axis in (0, 1))

SPEC = KernelSpec(
    name="octuple",
    kernel=octuple,
    reference=reference,
    inputs=_ARRAYS,
    exact=True,
    relations=(Linear(0), *_PERMUTED),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 64, "n": 1024}),),
    equivalent=(
        EquivalentMutant(
            operator="alias",
            change="added",
            source="return pl.pallas_call(",
            reason="all of x is in a buffer before anything is stored",
        ),
    ),
)

SPEC_COUNTED = KernelSpec(
    name="octuple_counted",
    kernel=octuple_counted,
    backends=without(READING_SEMAPHORES),
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": 16}),
    exact=True,
    relations=(Linear(0), *_PERMUTED),
    implementations={"octuple": octuple},
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 1024}),),
)
