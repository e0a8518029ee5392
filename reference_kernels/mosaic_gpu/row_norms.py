"""RMS norm over the last axis on a GPU: ``o[i, j] = x[i, j] r_i w_j``, with
``r_i = 1 / sqrt(mean_j x[i, j]^2 + eps)``.

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv:1910.07467).

Shapes: ``x`` and ``o`` are ``(..., n)``, ``w (n,)``, ``n`` up to 16384. Dtypes: float32, bfloat16
or float16, which ``w`` may have apart from ``x``; computed in float32, rounded once.

Forward, it is ``row_softmax`` with another function of a row: each element is read once and written
once. ``w`` is read by every block, but stays in the L1 cache of the SM.

Backward, with ``y = x r`` and ``g = do w``: ``dx = r (g - y mean_j(g y))`` and ``dw = sum_i do y``.
``dw`` sums over all rows, so the grid is as large as the GPU and no larger: each block goes over
its share of the rows and keeps its sum of ``do y`` in registers, where a thread has the same
columns of every row. The sums of the blocks are written once each, and added up outside. Floating
point atomics would add them in place, in another order every time.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted, Relation
from pytest_pallas.spec import EquivalentMutant, ExpectedFailure, KernelSpec
from reference_kernels import _gpu, _require
from reference_kernels.mosaic_gpu import _rows
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.reductions.rms_norm import reference


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What is no array.

    Attributes:
      n: elements of a row, without padding.
      eps: added to the mean square.
      block_rows: rows at a time, or None.
      blocks: blocks of the backward kernel, or None.
      overlap: whether to use programmatic dependent launch.
    """

    n: int
    eps: float
    block_rows: int | None
    blocks: int | None
    overlap: bool


def _scale_of(x: jax.Array, n: int, eps: float) -> jax.Array:
    """``r`` of every row, over the row. Padding is zero, and adds nothing to the sum."""
    return _rows.along(jax.lax.rsqrt(jnp.sum(x * x, axis=1) * (1.0 / n) + eps), x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: jax.Array, w: jax.Array, settings: _Settings) -> jax.Array:
    def of_rows(x: jax.Array, w: jax.Array) -> jax.Array:
        return x * _scale_of(x, settings.n, settings.eps) * w

    return _rows.over_rows(
        of_rows,
        (x,),
        (w,),
        block_rows=settings.block_rows,
        overlap=settings.overlap,
        name="row_rms_norm",
    )


def _gradient_kernel(
    x_gmem: Any,
    w_gmem: Any,
    do_gmem: Any,
    dx_gmem: Any,
    dw_gmem: Any,
    *,
    plan: _rows.Plan,
    settings: _Settings,
) -> None:
    block, blocks = jax.lax.axis_index("block"), dw_gmem.shape[0]
    layout = plan.layout.reduce(0)  # of one row, over all warps

    def some_rows(start: Any, dw: jax.Array, rows: int) -> jax.Array:
        read = [
            [_rows.load(ref.at[start + i], layout) for ref in (x_gmem, do_gmem)]
            for i in range(rows)
        ]
        w = _rows.load(w_gmem, layout)  # in the L1 cache; registers are scarce
        for i, (x, do) in enumerate(read):
            scale = jax.lax.rsqrt(jnp.sum(x * x) * (1.0 / settings.n) + settings.eps)
            y, g = x * scale, do * w
            mean = jnp.sum(g * y) * (1.0 / settings.n)
            _rows.store(dx_gmem.at[start + i], scale * (g - y * mean))
            dw += do * y
        return dw

    dw = plgpu.layout_cast(jnp.zeros((plan.n,), jnp.float32), layout)
    groups, tail = divmod(x_gmem.shape[0], plan.rows)
    share = (groups - block + blocks - 1) // blocks  # of all groups, every blocks-th
    dw = jax.lax.fori_loop(
        0, share, lambda i, dw: some_rows((block + i * blocks) * plan.rows, dw, plan.rows), dw
    )
    if tail:  # the last block has these rows too
        dw = jax.lax.fori_loop(
            0,
            jnp.where(block == blocks - 1, tail, 0),
            lambda i, dw: some_rows(groups * plan.rows + i, dw, 1),
            dw,
        )
    _rows.store(dw_gmem.at[block], dw)


def _forward(
    x: jax.Array, w: jax.Array, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _rms_norm(x, w, settings), (x, w)


def _backward(
    settings: _Settings, operands: tuple[jax.Array, jax.Array], do: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = operands
    m, n = x.shape
    # Three rows of float32 are in registers beside the sum.
    plan = _rows.Plan.of(n, x.dtype.itemsize, 2 if n <= 2048 else 1, share=True)
    # As many as the registers of an SM have room for: 72 a thread for 1024 columns, 167 for 4096.
    per_sm = max(2, min(8, 12288 // n))
    blocks = settings.blocks or per_sm * _gpu.multiprocessors()
    blocks = max(1, min(blocks, m // plan.rows))
    dx, dw = plgpu.kernel(
        functools.partial(_gradient_kernel, plan=plan, settings=settings),
        out_type=(
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((blocks, n), jnp.float32),
        ),
        grid=(blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(x, w, do)
    return dx, jnp.sum(dw, axis=0).astype(w.dtype)


_rms_norm.defvjp(_forward, _backward)


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
    m, n = _rows.check(x)
    (size,) = _require.axes("w", w, "n")
    _require.same_size("n", ("x", n), ("w", size))
    _rows.dtype("w", w)
    if not eps > 0:
        raise ValueError(f"eps must be positive, but it is {eps!r}")
    for name, value in (("block_rows", block_rows), ("blocks", blocks)):
        if value is not None:
            _require.positive(**{name: value})
    settings = _Settings(n, eps, block_rows, blocks, overlap)
    o = _rms_norm(_rows.whole(x.reshape(m, n), 0.0), _rows.whole(w, 0.0), settings)
    return o[:, :n].reshape(x.shape)


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
    backends=TMA,
    reference=reference,
    inputs=st.one_of(_ANY, _LARGE_EPS),
    differentiable=(0, 1),
    relations=(
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0}, output=1),
        Relation("odd in x", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    equivalent=(
        _rows.TAIL_BY_ALL,
        EquivalentMutant(
            operator="arithmetic",
            change="add -> sub",
            source="some_rows(groups * plan.rows + i, dw, 1)",
            reason="of pairs of rows one is left at most: i is 0",
        ),
    ),
    typical=(pst.shaped("m n, n", dtype=("bfloat16", "float32"), dims={"m": 8192, "n": 4096}),),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_rms_norm_overlap",
    kernel={"gpu": functools.partial(row_rms_norm, overlap=True)},
    checks=("forward",),
    xfail={
        "gpu-interpret": ExpectedFailure(
            reason="the interpreter has no griddepcontrol", jax="0.12.0.1"
        )
    },
)
