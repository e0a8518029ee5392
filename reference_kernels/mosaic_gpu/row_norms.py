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

import jax

from reference_kernels.mosaic_gpu import _norms


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
