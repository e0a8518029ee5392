"""Matrix product ``o = activation(x @ y)`` over a 3-D grid with a float32 accumulator.

Shapes: ``x (m, k)``, ``y (k, n)`` or, transposed, ``(n, k)``, ``o (m, n)``. Dtypes: float32 or
bfloat16, the same for both. ``batched_matmul`` has a batch ``b`` in front of all three.

The grid is ``(m, n, k)`` in blocks, ``k`` innermost: the programs that add to one block of the
output follow each other, so their sum stays in VMEM, and the output is written to HBM once. An
activation is applied to that float32 sum, which saves it a trip to HBM and back.

What keeps the matrix unit (MXU) busy:

- Large blocks. A program begins with a hundred bundles or two before the MXU has its first
  operands, and ends with as many that take the last results from it. Their number does not grow
  with the block.
- Nothing but products in the way. The first program of a sum does not clear the accumulator, it
  ignores what it holds. That is a select beside each addition, in slots that are free while the MXU
  works; to clear 4 MB takes over 500 bundles in which it does not.
- The rounding at the end is hidden in the same way where it costs nothing (``round_each_step``).
- An output of float32 is its own accumulator, and a sum of a single program needs none.

The last block of ``k`` may reach beyond the end of both operands. What lies there is unspecified,
and zero times NaN is NaN, so both sides are masked.

Backward, with ``g = activation'(x @ y) do``: ``dx = g @ y^T`` and ``dy = x^T @ g``, by the same
kernel, which contracts whichever axes it is told to, so that nothing is transposed in HBM. The sum
before the activation is computed again rather than kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import chip_at_hand, divisor, fit_axis, precision_for, vmem_limit

Activation = Callable[[Any], Any]


class Blocks(NamedTuple):
    """Rows and columns of a block of the output, and how much of the sums a program contracts."""

    rows: int
    columns: int
    length: int


def default_blocks(dtype: Any, chip: pltpu.TpuInfo) -> Blocks:
    """Blocks that keep the matrix unit of ``chip`` busy with operands of ``dtype``.

    In a step, a block of the output takes ``2 rows columns length`` operations for
    ``(rows + columns) length`` elements that are copied. That has to be more operations a byte than
    the chip can do, 240 on a v5e and 561 on a v6e, or the unit waits for HBM. Float32 takes six
    products of bfloat16 for one, so it is far from that limit; there, VMEM is.
    """
    if jnp.dtype(dtype).itemsize >= 4:
        return Blocks(512, 1024, 256)
    square = Blocks(1024, 1024, 512)
    operations = 2 * square.rows * square.columns
    copied = (square.rows + square.columns) * jnp.dtype(dtype).itemsize
    if operations / copied < chip.bf16_ops_per_second / chip.mem_bw_bytes_per_second:
        return Blocks(2 * square.rows, square.columns, square.length)
    return square


def _matmul_kernel(
    x_ref: Any,
    y_ref: Any,
    o_ref: Any,
    *scratch: Any,
    axes: tuple[int, int],
    length: int,
    activation: Activation | None,
    round_each_step: bool,
) -> None:
    """Contract axis ``axes[0]`` of ``x`` with ``axes[1]`` of ``y``, both ``length`` long."""
    step, last = pl.program_id(2), pl.num_programs(2) - 1
    x, y = x_ref[...], y_ref[...]
    block = x.shape[axes[0]]
    if length % block:
        left = length - step * block
        x, y = _first(left, x, axes[0]), _first(left, y, axes[1])
    total = jax.lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision_for(x.dtype),
        preferred_element_type=jnp.float32,
    )

    def finish(total: jax.Array) -> None:
        o_ref[...] = (activation(total) if activation else total).astype(o_ref.dtype)

    if length <= block:
        finish(total)
        return
    (acc_ref,) = scratch or (o_ref,)
    total = jnp.where(step == 0, 0.0, acc_ref[...]) + total  # at first it holds anything, even NaN
    if round_each_step:
        finish(total)
    acc_ref[...] = total
    if not round_each_step and (scratch or activation):
        pl.when(step == last)(lambda: finish(acc_ref[...]))


def _first(count: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros after the first ``count`` elements along ``axis``."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < count
    # In float32, because Mosaic cannot select bfloat16 of less than 5 rows (JAX 0.12.0.1).
    return jnp.where(inside, x.astype(jnp.float32), 0.0).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a product is computed with, besides its operands.

    Attributes:
      activation: applied to the sums.
      axis: the axis of ``y`` that is contracted: 1 if it is transposed.
      blocks: sizes of the blocks, not yet fitted to the operands.
      round_each_step: see ``matmul``.
    """

    activation: Activation | None
    axis: int
    blocks: Blocks
    round_each_step: bool


def _contract(
    x: jax.Array,
    y: jax.Array,
    axes: tuple[int, int],
    settings: _Settings,
    *,
    activation: Activation | None = None,
    dtype: Any = None,
) -> jax.Array:
    """``activation`` of ``x`` and ``y`` contracted over ``axes``, rounded to ``dtype``."""
    dtype = x.dtype if dtype is None else jnp.dtype(dtype)
    (x_sum, y_sum), (x_out, y_out) = axes, (1 - axes[0], 1 - axes[1])
    rows, columns, length = x.shape[x_out], y.shape[y_out], x.shape[x_sum]
    block_rows = fit_axis(settings.blocks.rows, rows, last=x_out == 1)
    block_columns = fit_axis(settings.blocks.columns, columns, last=True)
    block = fit_axis(settings.blocks.length, length, last=1 in axes)
    x_block = (block, block_rows) if x_sum == 0 else (block_rows, block)
    y_block = (block, block_columns) if y_sum == 0 else (block_columns, block)
    o_block = (block_rows, block_columns)
    needs_scratch = length > block and dtype != jnp.float32
    sums = [pltpu.VMEM(o_block, jnp.float32)] if needs_scratch else []
    return pl.pallas_call(
        functools.partial(
            _matmul_kernel,
            axes=axes,
            length=length,
            activation=activation,
            round_each_step=settings.round_each_step and needs_scratch and activation is None,
        ),
        out_shape=jax.ShapeDtypeStruct((rows, columns), dtype),
        grid_spec=pl.GridSpec(
            grid=(
                pl.cdiv(rows, block_rows),
                pl.cdiv(columns, block_columns),
                pl.cdiv(length, block),
            ),
            in_specs=[
                pl.BlockSpec(x_block, lambda i, j, step: (step, i) if x_sum == 0 else (i, step)),
                pl.BlockSpec(y_block, lambda i, j, step: (step, j) if y_sum == 0 else (j, step)),
            ],
            out_specs=pl.BlockSpec(o_block, lambda i, j, step: (i, j)),
            scratch_shapes=sums,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(
                (x_block, x.dtype),
                (y_block, y.dtype),
                (o_block, dtype),
                scratch=4 * block_rows * block_columns * len(sums),
            ),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * columns * length,
            transcendentals=rows * columns if activation else 0,
            bytes_accessed=(x.size + y.size) * x.dtype.itemsize + rows * columns * dtype.itemsize,
        ),
    )(x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, y: jax.Array, settings: _Settings) -> jax.Array:
    return _contract(x, y, (1, settings.axis), settings, activation=settings.activation)


def _forward(
    x: jax.Array, y: jax.Array, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(x, y, settings), (x, y)


def _backward(
    settings: _Settings, operands: tuple[jax.Array, jax.Array], do: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = operands
    if settings.activation is not None:
        total = _contract(x, y, (1, settings.axis), settings, dtype=jnp.float32)
        _, pullback = jax.vjp(settings.activation, total)
        do = pullback(do.astype(jnp.float32))[0].astype(x.dtype)
    dx = _contract(do, y, (1, 1 - settings.axis), settings)
    dy = _contract(*((do, x) if settings.axis else (x, do)), (0, 0), settings)
    return dx, dy


_matmul.defvjp(_forward, _backward)


def matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    round_each_step: bool | None = None,
) -> jax.Array:
    """``activation(x @ y)``. It can be differentiated by both operands, and vmapped.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      activation: an elementwise function such as ``jax.nn.silu``, applied to the float32 sums
        inside the kernel; it must not close over arrays.
      transpose_rhs: ``y`` is ``(n, k)``, as weights often are, and the product is ``x @ y.T``. The
        transposed array is never made.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` a program contracts. By default, blocks are chosen for the chip
        and the dtype so that they take at most 16 MB of VMEM, 23 MB on a v6e. Blocks are rounded
        up to whole tiles, and what exceeds the default limit of VMEM is asked for.
      round_each_step: round the sums so far into the output in every program rather than in a
        block of its own in the last one. The core has time for it while the MXU works, if it can
        store two registers at once, as it can from v6e on; before, it costs more than it saves. By
        default whichever is better on the chip. It does nothing with an activation.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    given = {"block_m": block_m, "block_n": block_n, "block_k": block_k}
    sizes = {name: size for name, size in given.items() if size is not None}
    _, k, _ = _require.product(x, y, transpose_rhs=transpose_rhs, **sizes)
    chip = chip_at_hand()
    rows, columns, length = default_blocks(x.dtype, chip)
    blocks = Blocks(block_m or rows, block_n or columns, block_k or divisor(length, k))
    if round_each_step is None:
        round_each_step = chip.generation >= 6
    return _matmul(x, y, _Settings(activation, int(transpose_rhs), blocks, round_each_step))


def batched_matmul(x: jax.Array, y: jax.Array, **settings: Any) -> jax.Array:
    """``activation(x[i] @ y[i])`` for each ``i`` of a batch.

    ``vmap`` puts the batch in front of the grid, so one call of the kernel does all of it. With one
    ``y`` for the whole batch, call ``matmul`` with the batch and ``m`` as one axis instead: that
    makes larger blocks.

    Args:
      x: ``(b, m, k)``.
      y: ``(b, k, n)``, or ``(b, n, k)`` with ``transpose_rhs``.
      **settings: the keywords of ``matmul``.

    Returns:
      ``(b, m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    b, *_ = _require.axes("x", x, "b m k")
    y_b, *_ = _require.axes("y", y, "b n k" if settings.get("transpose_rhs") else "b k n")
    _require.same_size("b", ("x", b), ("y", y_b))
    return jax.vmap(functools.partial(matmul, **settings))(x, y)


def reference(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
) -> jax.Array:
    """``activation(x @ y)``, accumulated in float32 at least and rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = y.T if transpose_rhs else y
    product = jnp.dot(x, y, precision=precision_for(x.dtype), preferred_element_type=wide)
    return (activation(product) if activation else product).astype(x.dtype)
