"""Specs of ``inplace``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels._gaps import OVERHANGING_ALIASES, without
from reference_kernels.refs.inplace import (
    add_one_aliased,
    add_one_by_ref,
    add_one_to_empty,
    add_one_to_first,
    add_steps,
    reference,
    reference_first,
    reference_steps,
)

_ARRAYS = pst.arrays(
    "m n", dtype=pst.dtypes("bfloat16", "float32", "int32"), around={"m": 16, "n": 128}
)

_PERMUTED = tuple(Permuted({0: axis}, output=axis, exact=True) for axis in (0, 1))

SPEC_ALIASED = KernelSpec(
    name="add_one_aliased",
    kernel=add_one_aliased,
    backends=without(OVERHANGING_ALIASES),
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": st.sampled_from([16, 32])}),
    exact=True,
    batch_axes=(0,),
    relations=_PERMUTED,
    implementations={
        "add_one_by_ref": add_one_by_ref,
        "add_one_to_empty": add_one_to_empty,
    },
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 512}),),
    equivalent=(
        EquivalentMutant(
            operator="alias",
            change="removed",
            source="return pl.pallas_call(",
            reason="the alias saves a buffer; all of the output is written, with or without it",
        ),
    ),
)

SPEC_BY_REF = KernelSpec(
    name="add_one_by_ref",
    kernel=add_one_by_ref,
    reference=reference,
    inputs=_ARRAYS,
    exact=True,
    relations=_PERMUTED,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch; 0.12.0.1 can
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 256, "n": 512}),),
)

SPEC_STEPS = KernelSpec(
    name="add_steps",
    kernel=add_steps,
    reference=reference_steps,
    inputs=pst.arguments(_ARRAYS, options={"steps": st.sampled_from([1, 3])}),
    exact=True,
    relations=_PERMUTED,
    vmappable=False,  # as above
    typical=(
        pst.shaped("m n", dtype="float32", dims={"m": 256, "n": 512}, options={"steps": 100}),
    ),
)

SPEC_EMPTY = KernelSpec(
    name="add_one_to_empty",
    kernel=add_one_to_empty,
    reference=reference,
    inputs=_ARRAYS,
    exact=True,
    relations=_PERMUTED,
    vmappable=False,  # as above
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 256, "n": 512}),),
)

SPEC_FIRST = KernelSpec(
    name="add_one_to_first",
    kernel=add_one_to_first,
    reference=reference_first,
    inputs=pst.arguments(
        # Not more rows than columns: the TPU interpreter takes such a masked store for one out of
        # bounds (JAX 0.12.0.1).
        pst.arrays("m n; m <= n", dtype=pst.dtypes("float32", "int32"), around={"m": 8, "n": 128}),
        then=lambda drawn: {
            "count": st.integers(-1, drawn.recipe["m"] + 1).map(
                lambda count: np.array([count], np.int32)
            )
        },
    ),
    exact=True,
    relations=(Permuted({0: 1}, output=1, exact=True),),
    vmappable=False,  # as above
    typical=(pst.shaped("m n, 1", dtype=["float32", "int32"], dims={"m": 256, "n": 512}),),
)
