"""Specs of ``masked``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels._gaps import MASKED_LOADS, without
from reference_kernels._unsupported import cannot_execute
from reference_kernels.basics.masked import (
    argmax,
    argmax_reference,
    least,
    load_where,
    load_where_reference,
)


def _with_least(drawn: pst.Drawn) -> pst.Drawn:
    """Every third column is the least number there is, so that nothing in it is better."""
    x = np.array(drawn[0])
    x[:, ::3] = least(x.dtype)
    return pst.Drawn((x,), {**drawn.recipe, "least": True}, declared=drawn.declared)


_DTYPES = pst.dtypes("float32", "bfloat16", "int32")
_COLUMNS = pst.arrays(
    "m n",
    dtype=_DTYPES,
    dims={"m": [1, 7, 8, 9, 16, 17, 37], "n": [1, 127, 129, 256]},
    values=("integers", "normal"),  # small integers are often equal
)

SPEC_ARGMAX = KernelSpec(
    name="argmax",
    kernel=argmax,
    reference=argmax_reference,
    inputs=pst.arguments(
        st.one_of(_COLUMNS, _COLUMNS.map(_with_least)),
        tuning={"block_rows": 16, "block_columns": 128},
    ),
    relations=(Permuted({0: 1}, output=0, exact=True),),
    typical=(pst.shaped("m n", dtype="bfloat16", dims={"m": 4096, "n": 2048}),),
)

SPEC_LOAD_WHERE = KernelSpec(
    name="load_where",
    kernel=load_where,
    reference=load_where_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n, m n",
            dtype=(_DTYPES, "bool"),
            dims={"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]},
        ),
        options={"other": st.sampled_from([0, -1, 7])},
        tuning={"block_rows": 16},
    ),
    batch_axes=(0, 0),
    relations=(Permuted({0: 0, 1: 0}, output=0, exact=True),),
    ignored=lambda x, mask, **_: (~mask, None),
    typical=(pst.shaped("m n, m n", dtype=("float32", "bool"), dims={"m": 1024, "n": 1024}),),
    backends=without(MASKED_LOADS),
    xfail=cannot_execute("no loads under a mask", "tpu-compile"),
    equivalent=(
        EquivalentMutant(
            operator="mask",
            change="dropped",
            source="chosen = pltpu.load(x_ref, mask=mask)",
            reason="where the mask does not hold, other takes the place of what was loaded",
        ),
    ),
)
