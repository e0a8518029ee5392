"""Specs of ``compact``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.compact import compact, expand, reference, reference_expand


@st.composite
def _inputs(draw: st.DrawFn, onto: bool) -> pst.Arguments:
    """Rows that keep all, nothing or some."""
    drawn = draw(
        pst.arrays(
            "rows n, rows n" if onto else "rows n",
            dtype=pst.dtypes("float32", "int32"),
            dims={"rows": [1, 9], "n": [1, 8, 21]},
            values="full",  # no element may lose a bit
        )
    )
    x, *others = drawn
    share, seed = draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.integers(0, 2**16))
    keep = np.random.default_rng(seed).random(x.shape) < share
    return pst.Arguments(
        args=(x, keep, *others),
        tuning={"block": 2, "cores": 1, "subcores": 2},
        recipe={**drawn.recipe, "keep": keep.tolist()},
        declared=drawn.declared,
    )


def _ignored(x: Any, keep: Any) -> tuple[Any, None]:
    """Elements that are not kept."""
    del x
    return ~np.asarray(keep), None


def _ignored_by_expand(x: Any, keep: Any) -> tuple[Any, None]:
    """Elements behind the first ones, as many as are wanted."""
    return np.arange(np.shape(x)[1]) >= np.sum(keep, axis=1, keepdims=True), None


_TYPICAL = pst.shaped("rows n, rows n", dtype=["float32", "bool"], dims={"rows": 8192, "n": 1024})
SPEC = KernelSpec(
    name="compact",
    kernel=compact,
    reference=reference,
    inputs=_inputs(onto=False),
    backends=BACKENDS,
    relations=(Permuted({0: 0, 1: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    ignored=_ignored,
    typical=(_TYPICAL,),
)

SPEC_ONTO = KernelSpec(
    name="compact_onto",
    kernel=compact,
    reference=reference,
    inputs=_inputs(onto=True),
    backends=BACKENDS,
    vmappable=False,
    typical=(
        pst.shaped(
            "rows n, rows n, rows n",
            dtype=["float32", "bool", "float32"],
            dims={"rows": 8192, "n": 1024},
        ),
    ),
)

SPEC_EXPAND = KernelSpec(
    name="expand",
    kernel=expand,
    reference=reference_expand,
    inputs=_inputs(onto=False),
    backends=BACKENDS,
    exact=2**20,
    relations=(Linear(0), Permuted({0: 0, 1: 0}, output=0, exact=True)),
    vmappable=False,
    ignored=_ignored_by_expand,
    typical=(_TYPICAL,),
)
