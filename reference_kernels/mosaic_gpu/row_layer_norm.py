"""Layer norm over the last axis on a GPU: ``o[i, j] = (x[i, j] - mean_i) r_i w_j + b_j``, with
``r_i = 1 / sqrt(mean_j (x[i, j] - mean_i)^2 + eps)``.

Ba, Kiros and Hinton, "Layer Normalization", 2016 (arXiv:1607.06450).

Shapes: ``x`` and ``o`` are ``(..., n)``, ``w`` and ``b`` ``(n,)``, ``n`` up to 16384. Dtypes:
float32, bfloat16 or float16, which ``w`` and ``b`` may have apart from ``x``; computed in float32,
rounded once.

A row stays in registers, so its variance is the mean square of what is left when the mean is off,
in a second pass that costs no traffic. The difference of ``mean x^2`` and ``mean^2``, which one
pass can have, loses all its bits where the mean is much larger than the deviation. Padded columns
are zero before the mean is taken off and not after it, so a vector says which they are.

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
from reference_kernels.reductions.layer_norm import reference


def row_layer_norm(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    *,
    eps: float = 1e-5,
    block_rows: int | None = None,
    blocks: int | None = None,
    overlap: bool = False,
) -> jax.Array:
    """Layer norm over the last axis. It can be differentiated by all operands, and vmapped.

    Args:
      x: ``(..., n)`` with at least one axis, float32, bfloat16 or float16. ``n`` is at most 16384;
        multiples of 1024 make full use of the memory.
      w: the scale ``(n,)``, float32, bfloat16 or float16.
      b: the shift ``(n,)``, likewise.
      eps: added to the variance of a row; positive, so that a row of equal numbers gives ``b``.
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
        b=b,
        eps=eps,
        centered=True,
        block_rows=block_rows,
        blocks=blocks,
        overlap=overlap,
        name="row_layer_norm",
    )


def _negated(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    x, w, b = arguments.args
    return dataclasses.replace(arguments, args=(-x, w, -b))


_DTYPES = pst.dtype_pairs(
    ("float32", "float32", "float32"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float32", "float32"),
)

SPEC = KernelSpec(
    name="row_layer_norm",
    kernel={"gpu": row_layer_norm},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=pst.arguments(
        # Of 15 rows in blocks of 8: a block, a group of 4, and 3 that are left.
        pst.arrays("m n, n, n", dtype=_DTYPES, dims={"m": [1, 8, 15], "n": [40, 256, 2176]}),
        options={"eps": st.sampled_from([1e-5, 0.25])},
        tuning={"block_rows": st.sampled_from([4, 8]), "blocks": st.sampled_from([2, 3])},
    ),
    differentiable=(0, 1, 2),
    relations=(
        Linear((1, 2)),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0, 2: 0}, output=1),
        Relation("odd in x and b", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    equivalent=_norms.EQUIVALENT,
    typical=(
        pst.shaped(
            "m n, n, n", dtype=("bfloat16", "float32", "float32"), dims={"m": 8192, "n": 4096}
        ),
    ),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_layer_norm_overlap",
    kernel={"gpu": functools.partial(row_layer_norm, overlap=True)},
    backends=TMA,  # JAX interprets no griddepcontrol
    checks=("forward",),
    equivalent=(),  # which are of the gradient
)
