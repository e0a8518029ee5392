"""Spec of ``reciprocal``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted, Raises
from reference_kernels.basics.reciprocal import reciprocal, reference

SPEC = KernelSpec(
    name="reciprocal",
    kernel=reciprocal,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.floats(),
            dims={"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]},
            values=("rows", "wide"),  # none of them 0
        ),
        options={"newton": st.booleans()},
        tuning={"block_rows": 16},
    ),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    raises=(
        Raises((np.ones((8, 128), np.int32),), ValueError, match="float32 or bfloat16, .* int32"),
        Raises(lambda call: (call.args[0][None],), ValueError, match="x must"),
        Raises(lambda call: call.args, ValueError, match="block_rows", options={"block_rows": 0}),
    ),
    typical=tuple(
        pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 1024}, options={"newton": newton})
        for newton in (False, True)
    ),
)
