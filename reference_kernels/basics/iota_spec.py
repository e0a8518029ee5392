"""Spec of ``iota``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels.basics.iota import iota, reference

SPEC = KernelSpec(
    name="iota",
    kernel=iota,
    reference=reference,
    inputs=pst.arguments(
        st.just(()),
        options={
            "rows": st.sampled_from([1, 7, 8, 9, 17]),
            "columns": st.sampled_from([1, 127, 128, 129, 257]),
        },
        tuning={"block_rows": 8, "block_columns": 128},
    ),
    exact=True,
    vmappable=False,  # there is no argument to map over
    typical=(pst.Arguments((), {"rows": 2048, "columns": 2048}),),
)
