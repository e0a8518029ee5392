"""Specs of ``pack``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec
from reference_kernels._gaps import PACKING, without
from reference_kernels.basics.pack import WIDE, pack, pack_reference, unpack, unpack_reference

_DIMS = {"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]}

SPEC_PACK = KernelSpec(
    name="pack",
    kernel=pack,
    reference=pack_reference,
    inputs=st.one_of(
        pst.arguments(
            pst.arrays("p m n", dtype=wide, dims={"p": [count], **_DIMS}),
            options={"packed": packed},
            tuning={"block_rows": 16},
        )
        for packed, (wide, count) in WIDE.items()
    ),
    typical=tuple(
        pst.shaped(
            "p m n",
            dtype=wide,
            dims={"p": count, "m": 1024, "n": 1024},
            options={"packed": packed},
        )
        for packed, (wide, count) in WIDE.items()
    ),
    backends=without(PACKING),
)

SPEC_UNPACK = KernelSpec(
    name="unpack",
    kernel=unpack,
    reference=unpack_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="uint32", dims=_DIMS, values=("integers", "wide")),
        options={"packed": st.sampled_from(list(WIDE))},
        tuning={"block_rows": 16},
    ),
    nan_ok=True,  # any word holds some bfloat16
    typical=tuple(
        pst.shaped("m n", dtype="uint32", dims={"m": 1024, "n": 1024}, options={"packed": packed})
        for packed in WIDE
    ),
    backends=without(PACKING),
    xfail={
        "tpu-compile:v4": ExpectedFailure(
            reason="a v4 cannot unpack bfloat16 in this order", jax="0.12.0.1"
        ),
    },
)
