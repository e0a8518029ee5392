"""Specs of ``scatter_add``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS, CLEARED
from reference_kernels.sparsecore.scatter_add import reference, scatter_add


@st.composite
def _inputs(draw: st.DrawFn, beyond: str) -> pst.Arguments:
    """Rows, and indices of which one may be out of range."""
    drawn = draw(
        pst.arrays(
            "m d",
            dtype=pst.dtypes("float32", "int32"),
            dims={"m": [1, 40], "d": [8, 13]},
            # Whatever the order of the additions, their sum is the same.
            values=["integers", "rows"],
        )
    )
    [x] = drawn
    rows = draw(st.sampled_from([1, 17]))
    idx = draw(pst.indices(x.shape[0], size=rows, dtype="int32"))
    if draw(st.booleans()):
        idx[draw(st.integers(0, x.shape[0] - 1))] = draw(st.sampled_from([-1, rows, 10**6]))
    return pst.Arguments(
        args=(x, idx),
        options={"rows": rows},
        tuning={"chunk": 8, "beyond": beyond, "cores": 1, "subcores": 2},
        recipe={**drawn.recipe, "rows": rows, "idx": idx.tolist()},
        declared=drawn.declared,
    )


def _spec(name: str, beyond: str) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=scatter_add,
        reference=reference,
        inputs=_inputs(beyond),
        backends=BACKENDS,
        exact=True,
        relations=(
            Linear(0),
            Permuted({0: 0, 1: 0}),
            Permuted({0: 1}, output=1),
        ),
        equivalent=(CLEARED,),
        vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
        typical=(
            pst.shaped(
                "m d, m",
                dtype=["float32", "int32"],
                dims={"m": 2**16, "d": 128},
                options={"rows": 4096},
                tuning={"beyond": beyond},
            ),
        ),
    )


SPEC = _spec("scatter_add", "spare")

SPEC_IGNORED = _spec("scatter_add_ignored", "ignored")
