"""Softmax of the rows of a matrix that lies on several devices.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32 or bfloat16, computed in float32.

``softmax_by_rows`` gives every device some of the rows. A row needs nothing of another one, so each
device calls the kernel of a single device, ``reductions.softmax``, and nothing is sent.

``softmax_by_columns`` gives every device a piece of every row, as a vocabulary that is split over
devices leaves them. With the piece ``x_d`` on device ``d``::

    top_d = max(x_d)                  top = max_d top_d
    total_d = sum(exp(x_d - top_d))   total = sum_d exp(top_d - top) total_d
    o_d = exp(x_d - top) / total

A first kernel reads the piece and writes two numbers a row. ``lax.pmax`` and ``lax.psum`` combine
those of the devices. A second kernel reads the piece again and writes the weights. So 8 bytes a row
are sent, whatever ``n`` is, where gathering rows would send all of them. Scaling a softmax of each
piece afterwards would send as little, but read and write ``o`` once more, and round it twice.

Backward, by columns: ``dx_d = o_d (do_d - sum_d sum_j o_d do_d)``, with ``o_d`` computed again: one
number a row is sent.

Source of the decomposition: Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018 (arXiv:1805.02867); of the split: Shoeybi et al., "Megatron-LM", 2019 (arXiv:1909.08053).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from reference_kernels import _require
from reference_kernels._tpu import LANES
from reference_kernels.parallel._divide import divide
from reference_kernels.reductions.softmax import reference as whole
from reference_kernels.reductions.softmax import softmax

_BLOCK_ELEMENTS = 256 * 1024


def _shift(top: jax.Array) -> jax.Array:
    """What to subtract of a row: of one that is all ``-inf``, nothing."""
    return jnp.where(top == -jnp.inf, 0.0, top)


def _statistics_kernel(x_ref: Any, top_ref: Any, total_ref: Any, *, n: int) -> None:
    inside = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1) < n
    x = jnp.where(inside, x_ref[...].astype(jnp.float32), -jnp.inf)
    top = jnp.max(x, axis=1, keepdims=True)
    top_ref[...] = top
    total_ref[...] = jnp.sum(jnp.exp(x - _shift(top)), axis=1, keepdims=True)


def _weights_kernel(x_ref: Any, top_ref: Any, total_ref: Any, o_ref: Any) -> None:
    total = total_ref[...]
    weights = jnp.exp(x_ref[...].astype(jnp.float32) - _shift(top_ref[...]))
    o_ref[...] = (weights / jnp.where(total == 0.0, 1.0, total)).astype(o_ref.dtype)


def _by_rows(
    kernel: Callable[..., None],
    block_rows: int | None,
    x: jax.Array,
    columns: tuple[jax.Array, ...],
    results: int | Any,
) -> Any:
    """Run ``kernel`` over blocks of whole rows of ``x``, and of ``columns (m, 1)``.

    ``results`` is the number of columns to return, or the dtype of a matrix like ``x``.
    """
    m, n = x.shape
    width = pl.cdiv(n, LANES) * LANES
    block = min(block_rows or max(8, _BLOCK_ELEMENTS // width // 32 * 32), m)
    matrix = pl.BlockSpec((block, width), lambda i: (i, 0))
    column = pl.BlockSpec((block, 1), lambda i: (i, 0))
    of_columns = isinstance(results, int)
    return pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((m, 1), jnp.float32)] * results
        if of_columns
        else jax.ShapeDtypeStruct(x.shape, results),
        grid=(pl.cdiv(m, block),),
        in_specs=[matrix, *[column] * len(columns)],
        out_specs=[column] * results if of_columns else matrix,
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
    )(x, *columns)


def _statistics(x: jax.Array, axis_name: str, block_rows: int | None) -> tuple[jax.Array, ...]:
    """The maximum of each whole row, and the sum of its weights, ``(m, 1)`` in float32."""
    kernel = functools.partial(_statistics_kernel, n=x.shape[1])
    top_here, total_here = _by_rows(kernel, block_rows, x, (), 2)
    top = jax.lax.pmax(top_here, axis_name)
    return top, jax.lax.psum(jnp.exp(top_here - _shift(top)) * total_here, axis_name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _softmax_piece(x: jax.Array, axis_name: str, block_rows: int | None) -> jax.Array:
    return _forward(x, axis_name, block_rows)[0]


def _forward(x: jax.Array, axis_name: str, block_rows: int | None) -> tuple[jax.Array, Any]:
    statistics = _statistics(x, axis_name, block_rows)
    return _by_rows(_weights_kernel, block_rows, x, statistics, x.dtype), (x, *statistics)


def _backward(
    axis_name: str, block_rows: int | None, saved: Any, do: jax.Array
) -> tuple[jax.Array]:
    x, *statistics = saved
    o = _by_rows(_weights_kernel, block_rows, x, tuple(statistics), jnp.float32)
    do32 = do.astype(jnp.float32)
    mean = jax.lax.psum(jnp.sum(o * do32, axis=1, keepdims=True), axis_name)
    return ((o * (do32 - mean)).astype(x.dtype),)


_softmax_piece.defvjp(_forward, _backward)


def softmax_piece(x: jax.Array, axis_name: str, *, block_rows: int | None = None) -> jax.Array:
    """Softmax of rows of which each device has a piece, inside ``jax.shard_map``.

    It can be differentiated.

    Args:
      x: ``(m, piece)``, float32 or bfloat16, the same shape on every device. Entries may be
        ``-inf``.
      axis_name: the axis of the mesh over which the rows are split.
      block_rows: rows in a block; by default as many as make a mebibyte of float32.

    Returns:
      The piece of the softmax, of the shape and dtype of ``x``. Rows that are all ``-inf`` on every
      device are all zeros.

    Raises:
      ValueError: ``x`` is not a matrix, empty or not floating, or ``block_rows`` is not positive.
    """
    _require.axes("x", x, "m n")
    _require.floating("x", x)
    if block_rows is not None:
        _require.positive(block_rows=block_rows)
    return _softmax_piece(x, axis_name, block_rows)


def _check(x: jax.Array, mesh: jax.sharding.Mesh, axis_name: str, axis: int) -> None:
    name, size = "mn"[axis], _require.axes("x", x, "m n")[axis]
    divide("x", name, size, mesh, axis_name)


def softmax_by_rows(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    block_rows: int | None = None,
) -> jax.Array:
    """Softmax of the rows of ``x``, which are divided over devices.

    Args:
      x: ``(m, n)``, float32 or bfloat16; ``m`` is a multiple of the number of devices.
      mesh: any mesh.
      axis_name: the axis of it over which the rows are divided; along others they are repeated.
      block_rows: rows in a block of the kernel; see ``reductions.softmax``.

    Returns:
      The shape and dtype of ``x``, split like it.

    Raises:
      ValueError: ``x`` is not a matrix, empty or not floating, ``m`` is not divisible by the size
        of the axis, the mesh has no such axis, or ``block_rows`` is not positive.
    """
    _check(x, mesh, axis_name, 0)
    rows = PartitionSpec(axis_name)
    kernel = functools.partial(softmax, block_rows=block_rows)
    # A pallas_call does not say over which mesh axes its output varies, so the check is off.
    return jax.shard_map(kernel, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)(x)


def softmax_by_columns(
    x: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    block_rows: int | None = None,
) -> jax.Array:
    """Softmax of the rows of ``x``, each of which is split over devices.

    Args:
      x: ``(m, n)``, float32 or bfloat16; ``n`` is a multiple of the number of devices.
      mesh: any mesh.
      axis_name: the axis of it over which the columns are divided; along others they are repeated.
      block_rows: rows in a block of the kernels; see ``softmax_piece``.

    Returns:
      The shape and dtype of ``x``, split like it.

    Raises:
      ValueError: ``x`` is not a matrix, empty or not floating, ``n`` is not divisible by the size
        of the axis, the mesh has no such axis, or ``block_rows`` is not positive.
    """
    _check(x, mesh, axis_name, 1)
    columns = PartitionSpec(None, axis_name)
    kernel = functools.partial(softmax_piece, axis_name=axis_name, block_rows=block_rows)
    return jax.shard_map(kernel, mesh=mesh, in_specs=columns, out_specs=columns, check_vma=False)(x)


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """Softmax of the rows of the whole matrix."""
    del mesh, axis_name
    return whole(x)
