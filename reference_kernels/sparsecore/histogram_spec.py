"""Spec of ``histogram``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS, CLEARED
from reference_kernels.sparsecore.histogram import ROW, histogram, reference


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Few different numbers, many different ones, and some that have no bin."""
    # The last is as many as there are counters: no room for a number that has no bin.
    n, bins = draw(st.sampled_from([1, 77])), draw(st.sampled_from([1, 130, 16 * ROW]))
    seed = draw(st.integers(0, 2**16))
    beyond = bins == 16 * ROW or draw(st.booleans())
    low, high = (-2, bins + 3) if beyond else (0, bins)
    x = np.random.default_rng(seed).integers(low, high, n).astype(np.int32)
    x[-1] = max(low, high - 3)
    return pst.Arguments(
        args=(x,),
        options={"bins": bins},
        tuning={"block": 16, "cores": 1, "subcores": 2},
        recipe={"n": n, "seed": seed, "low": low, "high": high, "bins": bins},
    )


SPEC = KernelSpec(
    name="histogram",
    kernel=histogram,
    reference=reference,
    inputs=_inputs(),
    backends=BACKENDS,
    relations=(Permuted({0: 0}, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    equivalent=(
        EquivalentMutant(
            operator="guard",
            change="of the next index",
            source="first = jax.lax.axis_index(_subcores.SUBCORE) == 0",
            reason="any one of the subcores may clear the sums, and store them",
        ),
        CLEARED,
    ),
    typical=(pst.shaped("n", dtype="int32", dims={"n": 2**20}, options={"bins": 1024}),),
)
