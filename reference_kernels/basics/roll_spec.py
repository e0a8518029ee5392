"""Specs of ``roll``."""

from __future__ import annotations

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec, Linear, Raises
from reference_kernels.basics.roll import reference, roll, skew, skew_reference

SPEC_ROLL = KernelSpec(
    name="roll",
    kernel=roll,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("float32", "bfloat16", "int8"),
            dims={"m": [1, 7, 8, 33, 65], "n": [1, 127, 128, 129, 257]},
        ),
        then={
            "shift": st.sampled_from([0, 1, -1, 8, 127, 128, 300, -(2**31)]).map(jnp.int32),
        },
        options={"axis": st.sampled_from([0, 1])},
        tuning={"block": st.sampled_from([128, 256])},
    ),
    exact=True,
    relations=(Linear(0),),
    raises=(
        Raises(
            lambda call: call.args, ValueError, match="axis must be 0 or 1", options={"axis": 2}
        ),
        Raises(lambda call: (call.args[0], jnp.float32(1)), ValueError, match="shift .* int32"),
        Raises(lambda call: (call.args[0][0], call.args[1]), ValueError, match="x must"),
        Raises(lambda call: (call.args[0][:0], call.args[1]), ValueError, match="empty"),
        Raises(lambda call: call.args, ValueError, match="block must", options={"block": 0}),
    ),
    vmappable=False,  # a scalar for each row of a batch makes blocks of SMEM
    typical=tuple(
        pst.shaped(
            "m n, ",
            dtype=("bfloat16", "int32"),
            dims={"m": 2048, "n": 2048},
            options={"axis": axis},
        )
        for axis in (0, 1)
    ),
)

SPEC_SKEW = KernelSpec(
    name="skew",
    kernel=skew,
    reference=skew_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("float32", "int32"),
            dims={"m": [1, 7, 8, 9, 17], "n": [128, 256]},
        ),
        tuning={"block_rows": 8},
    ),
    exact=True,
    relations=(Linear(0),),
    raises=(
        Raises(
            pst.shaped("m n", dtype="float32", dims={"m": 8, "n": 100}), ValueError, match="128"
        ),
        Raises(pst.shaped("m n", dtype="bfloat16", dims={"m": 8, "n": 128}), ValueError, "32 bits"),
        Raises(lambda call: call.args, ValueError, "block_rows must", options={"block_rows": -8}),
    ),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 2048, "n": 2048}),),
    xfail={
        "tpu-compile:v4": ExpectedFailure(
            reason="the rotate unit of a v4 has no stride; the compiler dies", jax="0.12.0.1"
        )
    },
)
