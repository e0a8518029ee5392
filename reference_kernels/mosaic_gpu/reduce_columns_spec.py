"""Specs of ``reduce_columns``."""

from __future__ import annotations

import dataclasses
import functools
from typing import get_args

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.reduce_columns import Operation, reduce_columns, reference

_DIMS = {"m": [1, 7, 16, 35], "n": [5, 128, 200, 512, 1024]}
# Rows fewer than are loaded at a time, as many, and twice as many.
_TUNING = {"block_rows": st.sampled_from([8, 16, 32])}

SPEC = KernelSpec(
    name="reduce_columns",
    kernel={"gpu": reduce_columns},
    backends=ANY,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=pst.dtypes("int32", "uint32"), dims=_DIMS),
        options={"op": st.sampled_from(get_args(Operation))},
        tuning=_TUNING,
    ),
    relations=(Permuted({0: 0}, exact=True), Permuted({0: 1}, output=0, exact=True)),
    typical=(pst.shaped("m n", dtype="int32", dims={"m": 8192, "n": 8192}),),
)

SPEC_FLOATS = KernelSpec(
    name="reduce_columns_floats",
    kernel={"gpu": reduce_columns},
    backends=ANY,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=pst.floats("float32"), dims=_DIMS), tuning=_TUNING
    ),
    exact=True,
    relations=(Permuted({0: 0}), Permuted({0: 1}, output=0)),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 8192, "n": 8192}),),
)

# Not for gpu-interpret, which has no atomic operations (JAX 0.12.0.1).
_ATOMIC = functools.partial(reduce_columns, by="atomic")

SPEC_ATOMIC = dataclasses.replace(
    SPEC,
    name="reduce_columns_atomic",
    kernel={"gpu": _ATOMIC},
    vmappable=False,  # a reference that is written has no axis of a batch
    typical=(),
)

SPEC_FLOATS_ATOMIC = dataclasses.replace(
    SPEC_FLOATS,
    name="reduce_columns_floats_atomic",
    kernel={"gpu": _ATOMIC},
    vmappable=False,
    deterministic=False,  # blocks add in any order
    typical=(),
)
