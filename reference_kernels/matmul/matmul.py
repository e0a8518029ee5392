"""Matrix product ``o = activation(x @ y)`` over a 3-D grid with a float32 accumulator.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: float32 or bfloat16, the same for both.

The grid is ``(m, n, k)`` in blocks, ``k`` innermost: the programs that add to one block of the
output follow each other, so their sum stays in a VMEM scratch, and the output is rounded and
written once. An activation is applied to that float32 sum, which saves it a trip to HBM and back.
The last block of ``k`` may reach beyond the end of both operands. What lies there is unspecified,
and zero times NaN is NaN, so both sides are masked.

Backward, with ``g = activation'(x @ y) do``: ``dx = g @ y^T`` and ``dy = x^T @ g``, by the same
kernel. The sum before the activation is computed again rather than kept.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels.matmul._operands import HIGHEST, Activation, check_operands, reference


def _matmul_kernel(
    x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any, *, k: int, activation: Activation | None
) -> None:
    step, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x, y = x_ref[...], y_ref[...]
    block_k = x.shape[1]
    if k % block_k:
        left = k - step * block_k
        x = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < left, x, 0)
        y = jnp.where(jax.lax.broadcasted_iota(jnp.int32, y.shape, 0) < left, y, 0)
    acc_ref[...] += jnp.dot(x, y, precision=HIGHEST, preferred_element_type=jnp.float32)

    @pl.when(step == last)
    def _round() -> None:
        total = acc_ref[...]
        o_ref[...] = (activation(total) if activation else total).astype(o_ref.dtype)


def _call(
    x: jax.Array,
    y: jax.Array,
    activation: Activation | None,
    blocks: tuple[int, int, int],
    dtype: Any,
) -> jax.Array:
    """``activation(x @ y)`` rounded to ``dtype``, in blocks of ``(m, n, k)``."""
    (m, k), n = x.shape, y.shape[1]
    block_m, block_n, block_k = (min(b, size) for b, size in zip(blocks, (m, n, k), strict=True))
    return pl.pallas_call(
        functools.partial(_matmul_kernel, k=k, activation=activation),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
            pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * m * n * k,
            transcendentals=m * n if activation else 0,
            bytes_accessed=(m * k + k * n) * x.dtype.itemsize + m * n * jnp.dtype(dtype).itemsize,
        ),
    )(x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _matmul(
    x: jax.Array, y: jax.Array, activation: Activation | None, blocks: tuple[int, int, int]
) -> jax.Array:
    return _call(x, y, activation, blocks, x.dtype)


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
    block_m, block_n, block_k = blocks
    if activation is not None:
        _, pullback = jax.vjp(activation, _call(x, y, None, blocks, jnp.float32))
        do = pullback(do.astype(jnp.float32))[0].astype(x.dtype)
    # XLA transposes. For dy, m becomes the last dimension of an operand: whole lanes for its block.
    lanes = pl.cdiv(block_m, 128) * 128
    dx = _call(do, y.T, None, (block_m, block_k, block_n), x.dtype)
    dy = _call(x.T, do, None, (block_k, block_n, lanes), y.dtype)
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
    check_operands(x, y, block_m=block_m, block_n=block_n, block_k=block_k)
    return _matmul(x, y, activation, (block_m, block_n, block_k))


_ARRAYS = pst.arrays(
    "m k, k n",
    dtype=pst.floats("bfloat16", "float32"),
    around={"m": 16, "k": 128, "n": 128},
)
_BLOCKS = {"block_m": st.sampled_from([16, 128]), "block_n": 128, "block_k": 128}

SPEC = KernelSpec(
    name="matmul",
    kernel=matmul,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning=_BLOCKS),
    exact=True,
    differentiable=(0, 1),
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
)
