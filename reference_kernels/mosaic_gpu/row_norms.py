"""RMS norm over the last axis on a GPU: ``o[i, j] = x[i, j] r_i w_j``, with
``r_i = 1 / sqrt(mean_j x[i, j]^2 + eps)``.

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv:1910.07467).

Shapes: ``x`` and ``o`` are ``(..., n)``, ``w (n,)``, ``n`` up to 16384. Dtypes: float32, bfloat16
or float16, which ``w`` may have apart from ``x``; computed in float32, rounded once.

Forward, it is ``row_softmax`` with another function of a row: each element is read once and written
once. ``w`` is read by every block, but stays in the L1 cache of the SM.

Backward: see ``_norms``, which also has the kernels.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted, Relation
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu import _norms
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.reductions.rms_norm import reference


def row_rms_norm(
    x: jax.Array,
    w: jax.Array,
    *,
    eps: float = 1e-6,
    block_rows: int | None = None,
    blocks: int | None = None,
    overlap: bool = False,
) -> jax.Array:
    """RMS norm over the last axis. It can be differentiated by both operands.

    Args:
      x: ``(..., n)`` with at least one axis, float32, bfloat16 or float16. ``n`` is at most 16384;
        multiples of 1024 make full use of the memory.
      w: ``(n,)``, float32, bfloat16 or float16.
      eps: added to the mean square of a row; positive, so that a row of zeros gives zeros.
      block_rows: rows of a block; by default as many as make 64 elements a thread.
      blocks: blocks of the backward kernel; by default, all that the GPU runs at once.
      overlap: launch the forward kernel by programmatic dependent launch.

    Returns:
      The shape and dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``eps`` is not positive, or a number
        of rows or blocks is not a positive integer.
    """
    return _norms.norm(
        x,
        w=w,
        eps=eps,
        centered=False,
        block_rows=block_rows,
        blocks=blocks,
        overlap=overlap,
        name="row_rms_norm",
    )


def _negated(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    x, w = arguments.args
    return dataclasses.replace(arguments, args=(-x, w))


_DTYPES = pst.dtype_pairs(
    ("float32", "float32"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
)
_ANY = pst.arguments(
    pst.arrays("m n, n", dtype=_DTYPES, dims={"m": [1, 8, 11], "n": [40, 256, 2176]}),
    tuning={"block_rows": st.sampled_from([4, 6]), "blocks": 2},
)

#: A block of 8 rows, a group of 4 and 3 that are left, and an eps that shows in all of them.
#: Backward, the first two of three blocks have none of the rows that are left.
_LARGE_EPS = pst.arguments(
    pst.arrays("m n, n", dtype=_DTYPES, dims={"m": 15, "n": [40, 256]}),
    options={"eps": 0.25},
    tuning={"block_rows": 8, "blocks": 3},
)

SPEC = KernelSpec(
    name="row_rms_norm",
    kernel={"gpu": row_rms_norm},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=st.one_of(_ANY, _LARGE_EPS),
    differentiable=(0, 1),
    relations=(
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0}, output=1),
        Relation("odd in x", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    equivalent=_norms.EQUIVALENT,
    typical=(pst.shaped("m n, n", dtype=("bfloat16", "float32"), dims={"m": 8192, "n": 4096}),),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_rms_norm_overlap",
    kernel={"gpu": functools.partial(row_rms_norm, overlap=True)},
    checks=("forward",),
    equivalent=(),  # which are of the gradient
    backends=tuple(each for each in SPEC.backends if each != "gpu-interpret"),  # griddepcontrol
)
