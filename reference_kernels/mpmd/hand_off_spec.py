"""Specs of ``hand_off``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec, Linear, Permuted
from reference_kernels.mpmd.hand_off import hand_off, lookup_matmul, reference
from reference_kernels.sparsecore._subcores_spec import BACKENDS


@st.composite
def _inputs(draw: st.DrawFn, **tuning: Any) -> pst.Arguments:
    """A table, weights, and indices of which one may be out of range."""
    drawn = draw(
        pst.arrays("rows k, k n", dtype="float32", dims={"rows": 17, "k": [8, 13], "n": [1, 129]})
    )
    x, w = drawn
    m = draw(st.sampled_from([1, 91]))  # three chunks for each subcore of a part
    idx = draw(pst.indices(m, size=x.shape[0], dtype="int32"))
    if draw(st.booleans()):
        idx[draw(st.integers(0, m - 1))] = draw(st.sampled_from([-1, x.shape[0]]))
    return pst.Arguments(
        args=(x, idx, w),
        tuning=tuning,
        recipe={**drawn.recipe, "m": m, "idx": idx.tolist()},
        declared=drawn.declared,
    )


_RELATIONS = (
    Linear(0),
    Linear(2),
    # Not to the last bit: on a simulator, sums depend on where a row is.
    Permuted({1: 0}, output=0),
    Permuted({0: 1, 2: 0}),
)
_TYPICAL = (
    pst.shaped(
        "rows k, m, k n",
        dtype=["float32", "int32", "float32"],
        dims={"rows": 2**17, "k": 256, "m": 8192, "n": 512},
    ),
)
SPEC = KernelSpec(
    name="lookup_matmul",
    kernel=lookup_matmul,
    reference=reference,
    inputs=_inputs(parts=2, chunk=8, cores=1, subcores=2),
    backends=BACKENDS,
    exact=True,
    relations=_RELATIONS,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=_TYPICAL,
)

_NOT_YET = ExpectedFailure(reason="mpmd_map does not support TC kernels yet", jax="0.12.0.1")

SPEC_HAND_OFF = KernelSpec(
    name="hand_off",
    kernel=hand_off,
    reference=reference,
    inputs=_inputs(block=8, subcores=2),
    backends=BACKENDS,
    exact=True,
    relations=_RELATIONS,
    vmappable=False,
    typical=_TYPICAL,
    xfail={
        **{f"tpu-compile:{chip}": _NOT_YET for chip in ("v5p", "v6e", "tpu7x")},
        "tpu": _NOT_YET,
    },
)
