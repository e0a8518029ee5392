"""Specs of ``swap_cores``."""

from __future__ import annotations

import numpy as np

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.refs.swap_cores import reference, reference_sum, sum_on_cores, swap_cores

#: The chips with two cores that act as one device.
# The portable interpreter cannot reach another core.
_BACKENDS = (
    "tpu-sim:v4",
    "tpu-sim:v5p",
    "tpu-interpret",
    "tpu-compile:v4",
    "tpu-compile:v5p",
    "tpu",
)


def _opposed(drawn: pst.Drawn) -> pst.Drawn:
    """Every other matrix is negated, so that the sums of the two cores cancel for equal rows.

    Those of 20 rows exceed 256, from where on bfloat16 does not hold every integer.
    """
    x = np.array(drawn[0])
    x[1::2] = -x[1::2]
    return pst.Drawn((x,), drawn.recipe, declared=drawn.declared)


_TYPICAL = (pst.shaped("p m n", dtype="bfloat16", dims={"p": 16, "m": 256, "n": 512}),)

SPEC = KernelSpec(
    name="swap_cores",
    kernel=swap_cores,
    reference=reference,
    inputs=pst.arrays(
        "p m n",
        dtype=pst.dtypes("bfloat16", "int32"),
        dims={"p": [2, 3, 6], "m": 17, "n": 129},
    ),
    backends=_BACKENDS,
    exact=True,
    relations=(Linear(0), Permuted({0: 2}, output=2, exact=True)),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=_TYPICAL,
)

SPEC_SUM = KernelSpec(
    name="sum_on_cores",
    kernel=sum_on_cores,
    reference=reference_sum,
    inputs=pst.arrays(
        "p m n",
        dtype=pst.floats("bfloat16", "float32"),
        dims={"p": [1, 5, 40], "m": 17, "n": 129},
        values=("normal", "integers", "rows"),
    ).map(_opposed),
    backends=_BACKENDS,
    exact=True,
    relations=(Linear(0), Permuted({0: 0})),
    vmappable=False,
    typical=_TYPICAL,
)
