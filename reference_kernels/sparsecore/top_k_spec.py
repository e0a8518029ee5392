"""Spec of ``top_k``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.top_k import reference, top_k


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Rows of different numbers, in any order: of equal ones, any may be taken."""
    rows, n = draw(st.sampled_from([1, 9])), draw(st.sampled_from([1, 13, 33, 40]))
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    shift = draw(st.integers(-40, 0))
    seed = draw(st.integers(0, 2**16))
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (rows, 1)), axis=1)
    k = draw(st.sampled_from([1, 8]).map(lambda k: min(k, n)))
    return pst.Arguments(
        args=((order + shift).astype(dtype),),
        options={"k": k},
        tuning={"block": 2, "cores": 1, "subcores": 2},
        recipe={"rows": rows, "n": n, "seed": seed, "shift": shift, "k": k},
    )


SPEC = KernelSpec(
    name="top_k",
    kernel=top_k,
    reference=reference,
    inputs=_inputs(),
    backends=BACKENDS,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    equivalent=(
        EquivalentMutant(
            operator="comparison",
            change="gt -> ge",
            source="(new_keys > keys)",
            reason="of two equal numbers either may be taken",
        ),
        EquivalentMutant(
            operator="comparison",
            change="ge -> gt",
            source="mask=places >= 0",
            caller="= _sorted(x_ref[",
            reason="place 0 is in the first register, all of which is taken and sorted again",
        ),
    ),
    typical=(
        pst.shaped("rows n", dtype="float32", dims={"rows": 8192, "n": 256}, options={"k": 8}),
    ),
)
