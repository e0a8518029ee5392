"""Spec of ``layer_norm``."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.reductions.layer_norm import layer_norm, reference


def _with_cancelling_shift(drawn: pst.Drawn) -> pst.Drawn:
    """Rows that are multiples of the first, and a ``b`` that leaves little of ``y w`` in each.

    What is left shows whether ``y w`` was rounded before ``b`` was added.
    """
    x, w = (np.asarray(operand, np.float32) for operand in drawn[:2])
    x = x[:1] * 2.0 ** (np.arange(len(x))[:, None] % 3)
    w = 64 * w
    y = (x[0] - x[0].mean()) / np.sqrt(x[0].var() + 1e-5)
    b = (-y * w).astype(jnp.bfloat16)
    made = [new.astype(old.dtype) for new, old in zip((x, w, b), drawn, strict=True)]
    return pst.Drawn(made, {**drawn.recipe, "shift": "cancelling"}, declared=drawn.declared)


_ARRAYS = pst.arrays(
    "m n, n, n",
    dtype=pst.dtype_pairs(
        ("float32", "float32", "float32"),
        ("bfloat16", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
    ),
    around={"m": 16, "n": 128},
)

#: Shifts that nearly undo what was normalized: it shows if that is rounded before they are added.
CANCELLING = pst.arrays(
    "m n, n, n",
    dtype=("bfloat16", "float32", "float32"),
    dims={"m": [16, 17], "n": [128, 129]},
    values="normal",
).map(_with_cancelling_shift)

SPEC = KernelSpec(
    name="layer_norm",
    kernel=layer_norm,
    reference=reference,
    inputs=pst.arguments(st.one_of(_ARRAYS, CANCELLING), tuning={"block_rows": 16}),
    differentiable=(0, 1, 2),
    batch_axes=(0, None, None),
    relations=(
        Linear((1, 2)),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0, 2: 0}, output=1),
    ),
    typical=(
        pst.shaped(
            "m n, n, n", dtype=("bfloat16", "float32", "float32"), dims={"m": 4096, "n": 4096}
        ),
    ),
)
