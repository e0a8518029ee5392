"""Specs of ``rows``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.portable._claims import BACKENDS
from reference_kernels.portable.rows import portable_layer_norm, portable_rms_norm, portable_softmax
from reference_kernels.reductions.layer_norm import reference as layer_norm_reference
from reference_kernels.reductions.layer_norm_spec import CANCELLING
from reference_kernels.reductions.rms_norm import reference as rms_norm_reference
from reference_kernels.reductions.softmax import reference as softmax_reference


def _with_masked_entries(drawn: pst.Drawn) -> pst.Drawn:
    """Every third row of ``x`` gets ``-inf`` in its even columns; every sixth is all ``-inf``."""
    x = np.array(drawn[0])
    x[2::3, ::2] = -np.inf
    x[5::6] = -np.inf
    return pst.Drawn((x,), {**drawn.recipe, "masked": True}, declared=drawn.declared)


_DTYPES = pst.floats("bfloat16", "float32")
_AROUND = {"m": 16, "n": 128}
_TYPICAL = {"m": 4096, "n": 1024}

#: exp overflows at 89, which only wide values reach.
_SOFTMAX_OF = pst.arrays(
    "m n", dtype=_DTYPES, around=_AROUND, values=("normal", "integers", "wide")
)

#: Besides what is usual, one that is not lost beside a mean square of 1.
_EPS = st.sampled_from([1e-6, 0.25])

SPEC_SOFTMAX = KernelSpec(
    name="portable_softmax",
    kernel=portable_softmax,
    backends=BACKENDS,
    reference=softmax_reference,
    inputs=st.one_of(_SOFTMAX_OF, _SOFTMAX_OF.map(_with_masked_entries)),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    typical=(pst.shaped("m n", dtype="float32", dims=_TYPICAL),),
)

SPEC_RMS_NORM = KernelSpec(
    name="portable_rms_norm",
    kernel=portable_rms_norm,
    backends=BACKENDS,
    reference=rms_norm_reference,
    inputs=pst.arguments(
        pst.arrays("m n, n", dtype=_DTYPES, around=_AROUND), options={"eps": _EPS}
    ),
    batch_axes=(0, None),
    relations=(Linear(1), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}, output=1)),
    typical=(pst.shaped("m n, n", dtype="float32", dims=_TYPICAL),),
)

SPEC_LAYER_NORM = KernelSpec(
    name="portable_layer_norm",
    kernel=portable_layer_norm,
    backends=BACKENDS,
    reference=layer_norm_reference,
    inputs=pst.arguments(
        st.one_of(pst.arrays("m n, n, n", dtype=_DTYPES, around=_AROUND), CANCELLING),
        options={"eps": _EPS},
    ),
    batch_axes=(0, None, None),
    relations=(Linear((1, 2)), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0, 2: 0}, output=1)),
    typical=(pst.shaped("m n, n, n", dtype="float32", dims=_TYPICAL),),
)
