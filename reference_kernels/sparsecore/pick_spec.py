"""Spec of ``pick``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.pick import pick, reference


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Weights with zeros among them, and draws on the borders of their sums."""
    rows, n = draw(st.sampled_from([1, 33])), draw(st.sampled_from([1, 8, 13, 33]))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, draw(st.sampled_from([1, 2, 5])), (rows, n)).astype(np.int32)
    total = int(weights.sum(axis=1).max())
    draws = rng.integers(0, total + 2, rows).astype(np.int32)
    return pst.Arguments(
        args=(weights, draws),
        tuning={"block": 8, "cores": 2, "subcores": 1},
        recipe={"rows": rows, "n": n, "seed": seed, "total": total},
    )


SPEC = KernelSpec(
    name="pick",
    kernel=pick,
    reference=reference,
    inputs=_inputs(),
    backends=BACKENDS,
    relations=(Permuted({0: 0, 1: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    unreached={"lane < lanes partial": "all lanes have the same index"},
    equivalent=tuple(
        EquivalentMutant(
            operator=operator,
            source=source,
            reason="all lanes hold the same index of the row, and store it to the same place",
        )
        for operator, source in (
            ("comparison", "first_lane = jax.lax.iota"),
            ("mask", "plsc.store_scatter(o_ref, [row], found, mask=first_lane)"),
        )
    ),
    typical=(pst.shaped("rows n, rows", dtype="int32", dims={"rows": 8192, "n": 1024}),),
)
