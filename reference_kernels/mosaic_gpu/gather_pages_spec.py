"""Spec of ``gather_pages``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu.gather_pages import gather_pages, reference


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Fewer pages than a block has slots for, and more; some of them wanted more than once."""
    drawn = draw(
        pst.arrays(
            "p r 128",
            dtype=pst.dtypes("bfloat16", "float32", "int32", "int8"),
            dims={"p": [1, 3, 9], "r": [1, 8]},
        )
    )
    length = draw(st.sampled_from([1, 4, 7, 19]))
    table = draw(pst.indices(length, size=drawn[0].shape[0], dtype="int32"))
    return pst.Arguments(
        (*drawn, table),
        tuning={"slots": draw(st.sampled_from([1, 2, 3])), "rounds": draw(st.sampled_from([1, 4]))},
    )


SPEC = KernelSpec(
    name="gather_pages",
    kernel={"gpu": gather_pages},
    backends=TMA,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    relations=(Linear(0), Permuted({1: 0}, output=0, exact=True)),
    typical=(
        pst.shaped(
            "p r c, t", dtype=("bfloat16", "int32"), dims={"p": 4096, "r": 16, "c": 128, "t": 2048}
        ),
    ),
)
