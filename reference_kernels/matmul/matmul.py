"""Matrix product ``o = activation(x @ y)`` over a 3-D grid with a float32 accumulator.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: float32 or bfloat16, the same for both.

The grid is ``(m, n, k)`` in blocks, ``k`` innermost: the programs that add to one block of the
output follow each other, so their sum stays in a VMEM scratch, and the output is rounded and
written once. An activation is applied to that float32 sum, which saves it a trip to HBM and back.
The last block of ``k`` may reach beyond the end of both operands. What lies there is unspecified,
and zero times NaN is NaN, so both sides are masked.

Backward, with ``g = activation'(x @ y) do``: ``dx = g @ y^T`` and ``dy = x^T @ g``, by the same
kernel, which contracts whichever axes it is told to, so that nothing is transposed in HBM. The sum
before the activation is computed again rather than kept.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels._blocks import LANES, ROWS, fit
from reference_kernels._mxu import precision_for
from reference_kernels.matmul._operands import Activation, check_operands, reference
from reference_kernels.matmul.matmul_naive import matmul_naive


def _matmul_kernel(
    x_ref: Any,
    y_ref: Any,
    o_ref: Any,
    acc_ref: Any,
    *,
    axes: tuple[int, int],
    length: int,
    activation: Activation | None,
) -> None:
    """Contract axis ``axes[0]`` of ``x`` with ``axes[1]`` of ``y``, both ``length`` long."""
    step, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x, y = x_ref[...], y_ref[...]
    block = x.shape[axes[0]]
    if length % block:
        left = length - step * block
        x, y = _first(left, x, axes[0]), _first(left, y, axes[1])
    acc_ref[...] += jax.lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision_for(x.dtype),
        preferred_element_type=jnp.float32,
    )

    @pl.when(step == last)
    def _round() -> None:
        total = acc_ref[...]
        o_ref[...] = (activation(total) if activation else total).astype(o_ref.dtype)


def _first(count: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros after the first ``count`` elements along ``axis``."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < count
    # In float32, because Mosaic cannot select bfloat16 of less than 5 rows (JAX 0.12.0.1).
    return jnp.where(inside, x.astype(jnp.float32), 0.0).astype(x.dtype)


def _contract(
    x: jax.Array,
    y: jax.Array,
    axes: tuple[int, int],
    x_block: tuple[int, int],
    y_block: tuple[int, int],
    *,
    activation: Activation | None = None,
    dtype: Any = None,
) -> jax.Array:
    """``activation`` of ``x`` and ``y`` contracted over ``axes``, rounded to ``dtype``."""
    dtype = x.dtype if dtype is None else dtype
    (x_sum, y_sum), (x_out, y_out) = axes, (1 - axes[0], 1 - axes[1])
    rows, columns, length = x.shape[x_out], y.shape[y_out], x.shape[x_sum]
    block = (x_block[x_out], y_block[y_out])
    return pl.pallas_call(
        functools.partial(_matmul_kernel, axes=axes, length=length, activation=activation),
        out_shape=jax.ShapeDtypeStruct((rows, columns), dtype),
        grid=(
            pl.cdiv(rows, block[0]),
            pl.cdiv(columns, block[1]),
            pl.cdiv(length, x_block[x_sum]),
        ),
        in_specs=[
            pl.BlockSpec(x_block, lambda i, j, step: (step, i) if x_sum == 0 else (i, step)),
            pl.BlockSpec(y_block, lambda i, j, step: (step, j) if y_sum == 0 else (j, step)),
        ],
        out_specs=pl.BlockSpec(block, lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM(block, jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * columns * length,
            transcendentals=rows * columns if activation else 0,
            bytes_accessed=(x.size + y.size) * x.dtype.itemsize
            + rows * columns * jnp.dtype(dtype).itemsize,
        ),
    )(x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _matmul(
    x: jax.Array, y: jax.Array, activation: Activation | None, blocks: tuple[int, int, int]
) -> jax.Array:
    m, n, k = blocks
    return _contract(x, y, (1, 0), (m, k), (k, n), activation=activation)


def _forward(
    x: jax.Array, y: jax.Array, activation: Activation | None, blocks: tuple[int, int, int]
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(x, y, activation, blocks), (x, y)


def _backward(
    activation: Activation | None,
    blocks: tuple[int, int, int],
    operands: tuple[jax.Array, jax.Array],
    do: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x, y = operands
    m, n, k = blocks
    if activation is not None:
        total = _contract(x, y, (1, 0), (m, k), (k, n), dtype=jnp.float32)
        _, pullback = jax.vjp(activation, total)
        do = pullback(do.astype(jnp.float32))[0].astype(x.dtype)
    dx = _contract(do, y, (1, 1), (m, n), (k, n))
    dy = _contract(x, do, (0, 0), (m, k), (m, n))
    return dx, dy


_matmul.defvjp(_forward, _backward)


def matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    block_m: int = 512,
    block_n: int = 512,
    block_k: int = 512,
) -> jax.Array:
    """``activation(x @ y)``. It can be differentiated by both operands, and vmapped.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      activation: an elementwise function such as ``jax.nn.silu``, applied to the float32 sums
        inside the kernel; it must not close over arrays.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` a program contracts. The default blocks of bfloat16 take 4 MB of
        VMEM, those of float32 7 MB.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k, n = check_operands(x, y, block_m=block_m, block_n=block_n, block_k=block_k)
    blocks = (fit(block_m, m, ROWS), fit(block_n, n, LANES), fit(block_k, k, LANES))
    return _matmul(x, y, activation, blocks)


_ARRAYS = pst.arrays(
    "m k, k n",
    dtype=pst.floats("bfloat16", "float32"),
    around={"m": 16, "k": 128, "n": 128},
)
_BLOCKS = {"block_m": st.sampled_from([16, 128]), "block_n": 128, "block_k": 128}

#: Rows of ``x``, and the terms of every sum.
_PERMUTED = (Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}))

_TYPICAL = pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 2048, "k": 2048, "n": 2048})

SPEC = KernelSpec(
    name="matmul",
    kernel=matmul,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning=_BLOCKS),
    exact=True,
    differentiable=(0, 1),
    batch_axes=(0, None),
    relations=(Linear(0), Linear(1), *_PERMUTED),
    implementations={"matmul_naive": matmul_naive},
    typical=(_TYPICAL,),
)

SPEC_ACTIVATION = KernelSpec(
    name="matmul_activation",
    kernel=matmul,
    reference=reference,
    inputs=pst.arguments(
        _ARRAYS,
        # Smooth ones only: at the kink of relu, rounding decides the gradient.
        options={"activation": st.sampled_from([jax.nn.silu, jax.nn.gelu, jnp.tanh])},
        tuning=_BLOCKS,
    ),
    differentiable=(0, 1),
    relations=_PERMUTED,
    typical=(dataclasses.replace(_TYPICAL, options={"activation": jax.nn.gelu}),),
)
